"""Calls of Amazon's APIs. `boto3` is imported only here, with its retries disabled.

A throttled call is retried: it had no effect, and a launch takes nine calls. All other errors are raised at once.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from outlast.clouds.aws.errors import Doc, from_code
from outlast.clouds.cloud import ApiExchange
from outlast.errors import BadRequest, CloudUnreachable, Denied, OutlastError, Throttled
from outlast.extras import install_hint
from outlast.store.credentials import aws_region

DEFAULT_REGION = "us-east-1"
# The Pricing API exists in few regions and covers all of them.
_PRICING_REGION = "us-east-1"
_CONNECT_S, _READ_S = 10, 60
TRIES = 4
_PAUSE_S = 0.25


class _Account:
    """What the clients of all regions share."""

    def __init__(self) -> None:
        # Sessions of `boto3` are not safe for threads.
        self.lock = threading.Lock()
        self.session: Any = None
        # The id of the last answer, and a receiver of all answers.
        self.last_request = ""
        self.sink: Callable[[ApiExchange], None] | None = None


class AwsClient:
    """A client of one region of one account. May be used from many threads at once."""

    def __init__(self, region: str = "", *, account: _Account | None = None) -> None:
        self.region = region or aws_region(os.environ) or DEFAULT_REGION
        self._account = account or _Account()
        self._clients: dict[str, Any] = {}

    def in_region(self, region: str) -> AwsClient:
        """Return a client of another region with the same credentials."""
        return self if region == self.region else AwsClient(region, account=self._account)

    @property
    def last_request(self) -> str:
        return self._account.last_request

    def watch(self, sink: Callable[[ApiExchange], None] | None) -> None:
        """Call `sink` with each answer in every region from now on; None ends it."""
        self._account.sink = sink

    def service(self, name: str) -> Any:
        """Return the `boto3` client of a service. Raises OutlastError if `boto3` is not installed."""
        with self._account.lock:
            if name not in self._clients:
                self._clients[name] = self._make(name)
            return self._clients[name]

    def _make(self, name: str) -> Any:
        try:
            from botocore.config import Config

            self._account.session = self._account.session or _new_session(self.region)
        except ImportError as problem:
            raise OutlastError("`boto3` is not installed", hint=install_hint("outlast[aws]")) from problem
        # The supervisor retries, not `boto3`. Parameters are still validated against the service's model.
        once = {"total_max_attempts": 1, "mode": "standard"}
        config = Config(retries=once, connect_timeout=_CONNECT_S, read_timeout=_READ_S, parameter_validation=True)
        region = _PRICING_REGION if name == "pricing" else self.region
        return self._account.session.client(name, region_name=region, config=config)

    def call(self, service: str, operation: str, **parameters: Any) -> Doc:
        """Call an operation and return its answer. Raises a CloudError."""
        for tried in range(1, TRIES + 1):
            try:
                return self._call(service, operation, parameters)
            except Throttled:
                if tried == TRIES:
                    raise
                time.sleep(_PAUSE_S * 2**tried * random.uniform(0.5, 1.0))
        raise AssertionError

    def _call(self, service: str, operation: str, parameters: Doc) -> Doc:
        client = self.service(service)  # first: it reports that `boto3` is missing
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            ParamValidationError,
            PartialCredentialsError,
        )
        from botocore.parsers import ResponseParserError

        try:
            answer: Doc = getattr(client, operation)(**parameters)
            self._note(service, operation, answer)
            return answer
        except ClientError as problem:
            error = problem.response.get("Error", {})
            self._note(service, operation, dict(problem.response))
            status = int(problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
            raise from_code(str(error.get("Code", "")), str(error.get("Message", "")), status=status) from problem
        except (NoCredentialsError, PartialCredentialsError) as problem:
            hint = "run `aws configure`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise Denied("no credentials for AWS were found", hint=hint) from problem
        except ParamValidationError as problem:
            raise BadRequest(f"{service} {operation}: {problem}") from problem
        except (BotoCoreError, ResponseParserError) as problem:
            # An unparsable answer comes from a proxy or from a failing server.
            raise CloudUnreachable(
                f"{service} {operation}: {problem}", hint="check the network connection"
            ) from problem

    def _note(self, service: str, operation: str, answer: Doc) -> None:
        about = answer.get("ResponseMetadata", {})
        self._account.last_request = str(about.get("RequestId", ""))
        if (sink := self._account.sink) is not None:
            status, plain = (
                int(about.get("HTTPStatusCode", 0)),
                {k: v for k, v in answer.items() if k != "ResponseMetadata"},
            )
            sink(
                ApiExchange(service=service, what=operation, status=status, request_id=self.last_request, answer=plain)
            )

    def ec2(self, operation: str, **parameters: Any) -> Doc:
        return self.call("ec2", operation, **parameters)

    def pages(self, service: str, operation: str, key: str, **parameters: Any) -> Iterator[Doc]:
        """Yield every item of every page."""
        token = ""
        while True:
            more = {"NextToken": token} if token else {}
            answer = self.call(service, operation, **parameters, **more)
            yield from answer.get(key, [])
            token = answer.get("NextToken") or ""
            if not token:
                return


def _new_session(region: str) -> Any:
    import boto3
    import botocore.session

    session = botocore.session.get_session()
    session.register_component("data_loader", _service_models())
    return boto3.Session(region_name=region, botocore_session=session)


@functools.cache
def _service_models() -> Any:
    """Return the loader of botocore's service models. It keeps them: reading EC2's for each region takes 0.2 s."""
    import botocore.session

    return botocore.session.get_session().get_component("data_loader")


def tags(values: dict[str, str]) -> list[Doc]:
    return [{"Key": key, "Value": value} for key, value in values.items()]


def read_tags(items: list[Doc] | None) -> dict[str, str]:
    return {str(item["Key"]): str(item.get("Value", "")) for item in items or []}
