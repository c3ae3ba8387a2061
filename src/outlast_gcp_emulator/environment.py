"""Environment variables that point clients at an endpoint, and the files that these variables name."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

from outlast.clouds.local.files import read_json, write_json
from outlast_gcp_emulator import absent
from outlast_gcp_emulator.access import split_url
from outlast_gcp_emulator.tokens import account, moved_key, service_account_key

PROJECT = "outlast-local"

_BOTO = """[Credentials]
gs_oauth2_refresh_token = outlast-local

[GSUtil]
# gsutil supports only https; through `gcloud storage` it uses the endpoints of gcloud.
use_gcloud_storage = True
default_project_id = {project}

[OAuth2]
provider_token_uri = {url}/token
"""


_DEFAULTS = """[compute]
zone = us-central1-a
region = us-central1
"""


def write_files(root: str, url: str, project: str = PROJECT) -> None:
    """Write the files for clients: gcloud's folder, a token, a key, gsutil's settings. `url` contains the token."""
    os.makedirs(f"{root}/gcloud/configurations", exist_ok=True)
    # In a file and not in a variable, which would override `gcloud config set compute/zone`.
    if not os.path.exists(f"{root}/gcloud/configurations/config_default"):
        _write(f"{root}/gcloud/configurations/config_default", _DEFAULTS)
        # Without it gcloud treats the folder as new, and empties the file.
        _write(f"{root}/gcloud/active_config", "default")
    _write(f"{root}/token", split_url(url)[1])
    _write(f"{root}/boto", _BOTO.format(url=url, project=project))
    key = read_json(f"{root}/key.json") or {}
    key = moved_key(key, url) if "private_key" in key else service_account_key(url, project)
    write_json(f"{root}/key.json", key, permissions=0o600)
    _log_in(f"{root}/gcloud/credentials.db", key)


def _log_in(path: str, key: dict[str, object]) -> None:
    """Add the account to gcloud's credentials, so that `gcloud auth list` lists it. Requests use the token's file."""
    kept = ("type", "client_email", "client_id", "private_key", "private_key_id", "token_uri")
    value = json.dumps({name: key[name] for name in kept if name in key})
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute('CREATE TABLE IF NOT EXISTS "credentials" (account_id TEXT PRIMARY KEY, value BLOB)')
        database.execute("REPLACE INTO credentials VALUES (?, ?)", (key["client_email"], value))


def variables(root: str, url: str, project: str = PROJECT) -> dict[str, str]:
    """Return the variables for gcloud, gsutil, Google's Python clients, obstore and other libraries, in this order.

    gcloud sends the token from its file; the other clients send none, so their address contains it.
    """
    address, token = split_url(url)
    return {
        # A separate folder keeps this account apart from real ones.
        "CLOUDSDK_CONFIG": f"{root}/gcloud",
        "CLOUDSDK_CORE_PROJECT": project,
        # gsutil sends no token unless gcloud has an account.
        "CLOUDSDK_CORE_ACCOUNT": account(project),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": f"{root}/token",
        **_endpoints(address),
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
        "BOTO_CONFIG": f"{root}/boto",
        "STORAGE_EMULATOR_HOST": url,
        "GOOGLE_CLOUD_PROJECT": project,
        "GOOGLE_APPLICATION_CREDENTIALS": f"{root}/key.json",
        "GOOGLE_SERVICE_ACCOUNT": f"{root}/key.json",
        "GOOGLE_ALLOW_HTTP": "true",
        # Without it tensorstore requests a token from Google, and waits forever.
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": token,
        **_libraries(url),
    }


def _libraries(url: str) -> dict[str, str]:
    """Return the variables of libraries that do not read STORAGE_EMULATOR_HOST."""
    return {
        # Google's client in C++, which pyarrow uses.
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": url,
        "TENSORSTORE_GCS_HTTP_URL": url,
        # Otherwise gcsfs requests the type of each bucket by gRPC, and waits a minute for the response.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


def _endpoints(url: str) -> dict[str, str]:
    """Return the address of each API for gcloud, which requires the slash at the end."""
    paths = {"STORAGE": "storage/v1", "COMPUTE": "compute/v1", "FILE": "file", "SOURCEREPO": "sourcerepo"}
    same = ("SECRETMANAGER", "SERVICEUSAGE", "IAM", "CLOUDRESOURCEMANAGER", "OSLOGIN")
    paths |= {name: name.lower() for name in same}
    paths |= {name.upper(): f"{absent.PATH}/{name}" for name in absent.NAMES}
    return {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{url}/{path}/" for name, path in paths.items()}


def machine_variables(url: str) -> dict[str, str]:
    """Return the variables for programs on a machine, which get their account from the metadata server.

    `url` contains the machine's token, for programs that send none.
    """
    return {
        **_endpoints(split_url(url)[0]),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
        "STORAGE_EMULATOR_HOST": url,
        **_libraries(url),
    }


def _write(path: str, text: str) -> None:
    draft = f"{path}.{os.getpid()}.draft"
    # Token and address are secrets that only this user may read.
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)
