"""Cloud Source Repositories: git repositories in a folder, managed by `gcloud source repos`.

git clients use HTTP, which `git http-backend` handles, so that machines with a separate network can clone, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from typing import Any

from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.router import Router

_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{2,127}")
_PROJECT = re.compile(r"[a-z][-a-z0-9]{0,61}")
_GIT_S_MAX = 600


class SourceRepositories:
    """Repositories as `<project>/<name>` below a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def add_to(self, router: Router) -> None:
        repositories = "/sourcerepo/{version}/projects/{project}/repos"
        router.add_methods(repositories, GET=self._list, POST=self._create)
        router.add_methods(f"{repositories}/{{name}}", GET=self._get, DELETE=self._delete)
        router.add_methods("/git/{project}/{name}/{rest*}", GET=self._git, POST=self._git)

    def _path(self, project: str, name: str) -> str:
        if not _PROJECT.fullmatch(project) or not _NAME.fullmatch(name):
            raise invalid(f"invalid repository name `{name}`: expected at least three letters, digits, `-`, `_`, `.`")
        return f"{self._folder}/{project}/{name}"

    def _find(self, request: HttpRequest) -> str:
        path = self._path(request.parts["project"], request.parts["name"])
        if not os.path.isdir(path):
            raise not_found("Requested entity was not found.")
        return path

    def _show(self, request: HttpRequest, name: str) -> dict[str, Any]:
        project = request.parts["project"]
        path = f"{self._folder}/{project}/{name}"
        size = sum(os.lstat(f"{folder}/{file}").st_size for folder, _, files in os.walk(path) for file in files)
        return {
            "name": f"projects/{project}/repos/{name}",
            "size": str(size),
            "url": f"{request.access_url}/git/{project}/{name}",
        }

    def _list(self, request: HttpRequest) -> HttpResponse:
        folder = f"{self._folder}/{request.parts['project']}"
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return json_response({"repos": [self._show(request, name) for name in names]} if names else {})

    def _get(self, request: HttpRequest) -> HttpResponse:
        self._find(request)
        return json_response(self._show(request, request.parts["name"]))

    def _create(self, request: HttpRequest) -> HttpResponse:
        name = str(request.json().get("name", "")).rpartition("/repos/")[2]
        path = self._path(request.parts["project"], name)
        if os.path.exists(path):
            raise ApiError(409, "alreadyExists", "Requested entity already exists")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            subprocess.run(["git", "init", "--quiet", "--bare", path], check=True, capture_output=True)
            subprocess.run(["git", "-C", path, "config", "http.receivepack", "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise ApiError(503, "backendError", "could not run git; is it installed?") from problem
        return json_response(self._show(request, name))

    def _delete(self, request: HttpRequest) -> HttpResponse:
        shutil.rmtree(self._find(request))
        return json_response({})

    def _git(self, request: HttpRequest) -> HttpResponse:
        """Pass a request of a git client to `git http-backend`."""
        self._find(request)
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_PROJECT_ROOT": self._folder,
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path.removeprefix("/git"),
            "QUERY_STRING": "&".join(f"{name}={value}" for name, value in request.query.items()),
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "REMOTE_USER": "local",
            "REMOTE_ADDR": "127.0.0.1",
        }
        with tempfile.TemporaryFile() as body, tempfile.TemporaryFile() as output:
            for piece in request.pieces():
                body.write(piece)
            variables["CONTENT_LENGTH"] = str(body.tell())
            body.seek(0)
            command = ["git", "http-backend"]
            try:
                subprocess.run(command, stdin=body, stdout=output, env=variables, check=True, timeout=_GIT_S_MAX)
            except (OSError, subprocess.SubprocessError) as problem:
                raise ApiError(503, "backendError", "`git http-backend` failed") from problem
            output.seek(0)
            return _from_cgi(output.read())


def _from_cgi(text: bytes) -> HttpResponse:
    """Parse the output of a CGI program."""
    head, _, body = text.partition(b"\r\n\r\n")
    pairs = [line.partition(":") for line in head.decode("latin-1").split("\r\n")]
    headers = {name: value.strip() for name, _, value in pairs}
    return HttpResponse(status=int(headers.pop("Status", "200").split()[0]), headers=headers, body=body)
