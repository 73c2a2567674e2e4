"""kube-scheduler on the other control-plane nodes, by a Job on each.

``HostJob`` tries and writes; here it is run, and then that node's kube-scheduler waited
for.
"""

from dataclasses import dataclass, field

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects, Ref
from gpusharectl.scheduler.hostjob import HostJob
from gpusharectl.scheduler.hostscheduler import Action
from gpusharectl.scheduler.kubeadm import Patience
from gpusharectl.scheduler.obstacle import Obstacle
from gpusharectl.scheduler.schedulercheck import last_words
from gpusharectl.scheduler.schedulerpod import PROGRAM, SchedulerPod
from gpusharectl.scheduler.schedulerwait import MirrorPod, Say
from gpusharectl.scheduler.shortpod import SYSTEM, waits_for

_MIRROR_S = 20.0
_LOG_LINES = 500
"""A manifest has some hundred."""


@dataclass(frozen=True, slots=True)
class SchedulerJobs:
    """The kube-schedulers on the other control-plane nodes."""

    objects: Objects
    image: str
    kubernetes: str
    tls: bool = False
    packs: bool = False
    patience: Patience = field(default_factory=Patience)

    def run(self, action: str, node: str, say: Say) -> str:
        """Do ``apply`` or ``restore`` there; why it did not come about, else "".

        Where kube-scheduler does not come up after ``apply`` its files are put back.
        """
        try:
            return self._run(Action(action), node, say)
        except ClusterError as error:
            return f"the Job for {node} could not be run: {error}"

    def _run(self, action: Action, node: str, say: Say) -> str:
        ref = Ref("v1", "Pod", f"{PROGRAM}-{node}", SYSTEM)
        # It is away for a moment while kubelet makes it anew.
        mirror = self.patience.pace.until(lambda: self.objects.get(ref), _MIRROR_S)
        if mirror is None:
            return (
                f"there is no pod {PROGRAM}-{node}, so kubeadm did not make this node"
            )
        job = HostJob(action, node, self.image, self.kubernetes, self.tls, self.packs)
        manifest = self._done(job, mirror, say)
        if isinstance(manifest, Obstacle):
            return str(manifest)
        pace, wait_s = self.patience.pace, self.patience.wait_s
        why = MirrorPod(self.objects, node, pace).wait(manifest, say, wait_s)
        if not why or action is not Action.APPLY:
            return why
        say(f"{PROGRAM} did not come up; its files are put back")
        again = self._run(Action.RESTORE, node, say)
        return f"{why}; " + (again or "its files are as before us, and it runs")

    def _done(self, job: HostJob, mirror: Json, say: Say) -> SchedulerPod | Obstacle:
        """Run the Job to its end, and give the manifest that it leaves."""
        body = job.body(mirror)
        ref = Ref.of(body)
        pace, most_s = self.patience.pace, self.patience.job_s
        if self.objects.delete(ref, grace_period_s=0):
            pace.until(lambda: self.objects.get(ref) is None or None, most_s)
        self.objects.create(body)
        try:
            say(f"Job {SYSTEM}/{job.name} writes the files")
            pace.until(lambda: _ended(self.objects.get(ref)), most_s)
            return self._outcome(job, self.objects.get(ref), most_s)
        finally:
            self.objects.delete(ref)

    def _outcome(
        self,
        job: HostJob,
        body: Json | None,
        most_s: float,
    ) -> SchedulerPod | Obstacle:
        pods = self.objects.list(
            "v1", "Pod", namespace=SYSTEM, label_selector=f"job-name={job.name}"
        )
        if not _ended(body) or not pods:
            why = next((waits_for(pod) for pod in pods), "") or "it has not started"
            return Obstacle(f"the Job did not end within {most_s:g} s: {why}")
        name, failed = pods[0]["metadata"]["name"], _failed(pods[0])
        log = self.objects.log(SYSTEM, name, failed or "write", lines=_LOG_LINES)
        if failed == "check":
            return Obstacle(
                f"{PROGRAM} would not take the configuration: {last_words(log)}"
            )
        return Obstacle(last_words(log)) if failed else SchedulerPod.read(log)


def _ended(job: Json | None) -> bool | None:
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    ends = {"Complete", "Failed"}
    over = any(each["type"] in ends and each["status"] == "True" for each in conditions)
    return True if over else None


def _failed(pod: Json) -> str:
    """Name the container that ended badly, "" where none did."""
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(kind) or ():
            if ((each.get("state") or {}).get("terminated") or {}).get("exitCode"):
                return str(each["name"])
    return ""
