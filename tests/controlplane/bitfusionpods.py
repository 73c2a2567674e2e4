"""Pods as seed 004 has them, word for word but for the no-break spaces."""

from tests.testbed.rest import Json

NAMESPACE = "tensorflow-benchmark"
IMAGE = "nvcr.io/nvidia/tensorflow:19.07-py3"
LINE = (
    "python /benchmark/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"
    " --local_parameter_device=gpu --batch_size=32 --model=inception3"
)
AMOUNT, PERCENT = "bitfusion.io/gpu-amount", "bitfusion.io/gpu-percent"
GPU_MEMORY, GPU = "bitfusion.io/gpu-memory", "bitfusion.io/gpu"
MODE, STATUS = "auto-management/bitfusion", "auto-management/status"
CLIENT = {"bitfusion-client/os": "ubuntu18", "bitfusion-client/version": "450"}
ALL = {MODE: "all", **CLIENT}

_POD = """\
apiVersion: v1
kind: Pod
metadata:
  annotations:
    auto-management/bitfusion: "all"
    bitfusion-client/os: "ubuntu18"
    bitfusion-client/version: "450"
  name: bf-pkgs
  # You can specify any namespace
  namespace: tensorflow-benchmark
spec:
  containers:
  - image: nvcr.io/nvidia/tensorflow:19.07-py3
    imagePullPolicy: IfNotPresent
    name: bf-pkgs
    command: ["{line}"]
    resources:
      limits:
        # Request one GPU for this Pod from the Bitfusion cluster
        bitfusion.io/gpu-amount: 1
        # 50 percent of each GPU to be consumed
        {asked}
    volumeMounts:
    - name: code
      mountPath: /benchmark
  volumes:
  - name: code
    # The Benchmarks used for the test came from:
    # https://github.com/tensorflow/benchmarks/tree/tf_benchmark_stage
    # Please make sure you have the corresponding content in /home/benchmarks directory
    # on your node
    hostPath:
      path: /home/benchmarks
"""
BY_PERCENT = _POD.format(line=LINE, asked="bitfusion.io/gpu-percent: 50")
BY_MEMORY = _POD.format(line=LINE, asked="bitfusion.io/gpu-memory: 8000M")
DEPLOYMENT = f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  annotations:
  labels:
    app: bfdeploy
  name: bfdeploy
  namespace: tensorflow-benchmark
spec:
  replicas: 2
  selector:
    matchLabels:
      app: bfdeploy
  strategy: {{}}
  template:
    metadata:
      annotations:
        auto-management/bitfusion: "all"
        bitfusion-client/os: "ubuntu18"
        bitfusion-client/version: "450"
      labels:
        app: bfdeploy
    spec:
      containers:
        - image: nvcr.io/nvidia/tensorflow:19.07-py3
          name: bfdeploy
          command: ["{LINE}"]
          resources:
            limits:
              bitfusion.io/gpu-amount: 1
              bitfusion.io/gpu-percent: 30
          volumeMounts:
            - name: code
              mountPath: /benchmark
      volumes:
        - name: code
          hostPath:
            path: /home/benchmarks
"""
QUOTA = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ResourceQuota
  metadata:
    name: bitfusion-quota
    namespace: tensorflow-benchmark
  spec:
    hard:
      requests.bitfusion.io/gpu: 100
"""


def share(percent: object = 50, amount: object = 1) -> dict[str, object]:
    """What a container of theirs asks."""
    return {AMOUNT: amount, PERCENT: percent}


def quota(name: str, resource: str, number: int) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {"hard": {resource: str(number)}},
    }
