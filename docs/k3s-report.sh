#!/bin/sh
# Ten commands that show how gpushare works on k3s, which it has never been run on: install.md.
# Run it as root on a server of k3s, after gpusharectl install, and send what it prints:
#   sh docs/k3s-report.sh > k3s-report.txt 2>&1
# It changes nothing but for one pod, k3s-report in the namespace default, which it deletes
# at its end. It prints no token: of k3s's settings only lines about the scheduler.
set -u
config=${K3S_CONFIG:-/etc/rancher/k3s}
number=0

show() {
  number=$((number + 1))
  echo
  echo "## $number. $*"
  "$@" || echo "## exit code $?"
}

scheduler_settings() {
  grep -HnE 'scheduler|config=|data-dir' "$config/config.yaml" "$config"/config.yaml.d/*.yaml
  cat "$config/vcuda/scheduler.yaml"
}

one_pod() {
  image=$(k3s kubectl -n kube-system get daemonset gpushare-device-plugin \
    -o 'jsonpath={.spec.template.spec.containers[0].image}')
  class=$(k3s kubectl get runtimeclass nvidia -o 'jsonpath={.metadata.name}' 2>/dev/null)
  k3s kubectl apply -f - <<POD
apiVersion: v1
kind: Pod
metadata: {name: k3s-report, namespace: default}
spec:
  restartPolicy: Never
  ${class:+runtimeClassName: $class}
  containers:
  - name: main
    image: $image
    command: [sh, -c, "nvidia-smi -L; ls /dev | grep nvidia; cat /etc/vcuda/allocation.json"]
    resources: {limits: {baidu.com/vcuda-memory: 1, baidu.com/vcuda-core: 1}}
POD
  k3s kubectl -n default wait pod/k3s-report --timeout=120s \
    --for=jsonpath='{.status.phase}'=Succeeded
}

what_it_saw() {
  k3s kubectl -n default logs k3s-report
  k3s kubectl -n default describe pod k3s-report
}

scheduler_log() {
  journalctl -u k3s --since -2h --no-pager | grep -iE 'extender|vcuda' | tail -40
}

show uname -srm
show k3s --version
show scheduler_settings
show k3s kubectl get nodes -o wide -L baidu.com/vcuda
show k3s kubectl get runtimeclass,daemonset,pods -n kube-system -o wide
show gpusharectl version
show gpusharectl inspect -o wide
show one_pod
show what_it_saw
show scheduler_log
k3s kubectl -n default delete pod k3s-report --ignore-not-found --wait=false
