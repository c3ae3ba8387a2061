"""Runs the fifteen steps of a verification in order, within its bounds, and cleans up in every case."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from outlast import __version__
from outlast.clouds.cloud import Cloud, HasVerification, Offer
from outlast.errors import OutlastError
from outlast.store.bucket import open_bucket
from outlast.verify import dry
from outlast.verify.clean import clean
from outlast.verify.live import LiveSteps, spent_usd
from outlast.verify.record import VerifyRecord, new_record
from outlast.verify.result import DRY, STEPS, VerifyReport, VerifyResult, VerifyStepFailed, VerifyStepSkipped
from outlast.workspace import Workspace, open_workspace

# A verification uses about this much machine time, and at most two machines at a time.
_MACHINE_HOURS = 0.35
# How often the machines are listed for the limit of the cost.
_SPEND_S = 10.0


class Runner:
    """One verification. `results` has the steps so far; `report` prints each as it ends."""

    def __init__(
        self,
        cloud: Cloud,
        *,
        bucket_url: str,
        region: str,
        gpu: str,
        gpus: int,
        max_usd: float,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        done: Callable[[VerifyResult], None],
    ) -> None:
        assert isinstance(cloud, HasVerification)
        self.cloud = cloud
        self.bucket_url = bucket_url
        self.region = region
        self.gpu, self.gpus = gpu, gpus
        self.max_usd = max_usd
        self.results: list[VerifyResult] = []
        self.record: VerifyRecord | None = None
        self.offer: Offer | None = None
        self._environment = environment
        self._report = report
        self._done = done
        self._seen_usd: dict[str, float] = {}
        self._spend_at = 0.0

    # Steps that cost nothing

    def dry(self) -> None:
        """Run the steps that create no machine."""
        assert isinstance(self.cloud, HasVerification)
        name, bucket = self.cloud.name, self.bucket_url.rpartition("/")[2]
        self.step("identity", self.cloud.identity)
        rights = f"you, the machines and the supervisor machine have their rights on {name}"
        self.step("rights", lambda: dry.findings(self.cloud, "rights", bucket=bucket, fine=rights))
        network = "the network and its subnetworks exist"
        self.step("network", lambda: dry.findings(self.cloud, "network", bucket=bucket, fine=network))
        self.step("bucket", self._bucket)
        self.step("prices and quotas", self._price)

    def _bucket(self) -> str:
        bucket = open_bucket(f"{self.bucket_url}/verify-dry")
        text = dry.bucket_semantics(bucket)
        name = self.bucket_url.rpartition("/")[2]
        return f"{text}; {dry.findings(self.cloud, 'bucket', bucket=name, fine='no costly settings')}"

    def _price(self) -> str:
        self.offer = dry.choose_offer(self.cloud, region=self.region, gpu=self.gpu, gpus=self.gpus)
        quotas = dry.findings(self.cloud, "quota", bucket="", fine="the quotas allow it", gpu=self.gpu)
        return f"{dry.price_text(self.offer)}; {quotas}"

    @property
    def estimate_usd(self) -> float:
        """Return the expected cost of the steps with machines."""
        assert self.offer is not None
        return _MACHINE_HOURS * (self.offer.price_usd_per_hour + self.offer.address_usd_per_hour)

    # Steps with machines

    def live(self) -> None:
        """Run the steps with machines, and delete everything afterwards, also after Ctrl-C."""
        assert self.offer is not None
        self.record = new_record(self.cloud.name, self.offer.region, self.bucket_url)
        workspace = open_workspace(self.record.workspace)
        self._report(
            f"verification {self.record.id}: `outlast verify --cloud {self.cloud.name} --clean {self.record.id}`"
        )
        try:
            self._live(workspace)
        finally:
            self.step("clean-up", self._clean)

    def _live(self, workspace: Workspace) -> None:
        assert self.offer is not None
        steps = LiveSteps(
            self.cloud,
            workspace,
            self.offer,
            environment=self._environment,
            report=self._report,
            spend=lambda: self._check_spending(workspace),
        )
        with steps.supervised():
            first = (
                ("launch", steps.launch),
                ("machine", steps.machine),
                ("run", steps.run),
                ("preemption", steps.preemption),
                ("sudden end", steps.sudden_end),
            )
            launched = True
            for name, act in first:
                if launched:
                    launched = self.step(name, act) or name == "machine"
                else:
                    self.skip(name, "an earlier step failed")
            self.step("boot failure", steps.boot_failure)
            self.step("secrets", steps.secrets) if self._is_ok("launch") else self.skip("secrets", "no machine started")
        if self._is_ok("launch"):
            self.step("no supervisor", steps.no_supervisor)
        else:
            self.skip("no supervisor", "no machine started")
        self.step("ssh", steps.ssh)

    def _is_ok(self, name: str) -> bool:
        return any(one.step == name and one.state == "ok" for one in self.results)

    def _check_spending(self, workspace: Workspace) -> None:
        if time.monotonic() - self._spend_at < _SPEND_S:
            return
        self._spend_at = time.monotonic()
        usd = spent_usd(self.cloud, workspace, self._seen_usd)
        if usd >= self.max_usd:
            raise VerifyStepFailed(
                f"the limit of ${self.max_usd:.2f} is reached: ${usd:.4f} by list prices", "raise --max-usd"
            )

    def _clean(self) -> str:
        assert self.record is not None
        spent_usd(self.cloud, open_workspace(self.record.workspace), self._seen_usd)
        text = clean(self.record, self.cloud, report=self._report)
        return f"{text}; ${self.cost_usd:.4f} of ${self.max_usd:.2f} by list prices"

    @property
    def cost_usd(self) -> float:
        return sum(self._seen_usd.values())

    # Results

    def step(self, name: str, act: Callable[[], str]) -> bool:
        """Run a step and record its result; return whether the next ones can use it."""
        begun = time.monotonic()
        try:
            result = VerifyResult(step=name, state="ok", text=act())
        except VerifyStepSkipped as why:
            result = VerifyResult(step=name, state="skipped", text=str(why))
        except VerifyStepFailed as problem:
            result = VerifyResult(step=name, state="FAIL", text=problem.text, fix=problem.fix)
        except OutlastError as problem:
            result = VerifyResult(step=name, state="FAIL", text=problem.message, fix=problem.hint)
        request = str(getattr(self.cloud, "last_request", ""))
        seconds = round(time.monotonic() - begun, 2)
        self._add(msgspec.structs.replace(result, request=request, seconds=seconds))
        return result.state == "ok"

    def skip(self, name: str, why: str) -> None:
        self._add(VerifyResult(step=name, state="skipped", text=why))

    def skip_rest(self, why: str) -> None:
        """Record all steps that have not run."""
        for name in STEPS:
            if all(one.step != name for one in self.results):
                self.skip(name, why)

    def _add(self, result: VerifyResult) -> None:
        self.results.append(result)
        self._done(result)

    def summary(self) -> VerifyReport:
        return VerifyReport(
            id=self.record.id if self.record is not None else "",
            cloud=self.cloud.name,
            region=self.offer.region if self.offer is not None else self.region,
            version=__version__,
            steps=self.results,
            cost_usd=round(self.cost_usd, 6),
        )

    @property
    def dry_failed(self) -> list[str]:
        return [one.step for one in self.results if one.step in DRY and one.state == "FAIL"]
