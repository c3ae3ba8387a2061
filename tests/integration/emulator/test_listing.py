"""Lists compared with a naive implementation, for random names and queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast_gcp_emulator.storage.listing import from_page_token, page_token
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.values import NO_CONDITIONS, ObjectQuery

NAMES = st.text(alphabet="ab/-é🙂%", min_size=1, max_size=6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    made = ObjectStore(str(tmp_path_factory.mktemp("store") / "storage"))
    made.create_bucket("box", project="p", meta={})
    yield made
    made.close()


def naive(names: set[str], query: ObjectQuery) -> tuple[list[str], list[str]]:
    """Return objects and prefixes of all pages by examining every name."""
    objects, prefixes = [], set()
    for name in sorted(names, key=str.encode):
        data = name.encode()
        if not name.startswith(query.prefix) or data < query.start or (query.end and data >= query.end):
            continue
        at = name.find(query.delimiter, len(query.prefix)) if query.delimiter else -1
        folder = name[: at + len(query.delimiter)] if at >= 0 else ""
        if folder:
            prefixes.add(folder)
        if not folder or (query.trailing_delimiter and folder == name):
            objects.append(name)
    return objects, sorted(prefixes, key=str.encode)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(NAMES, max_size=12),
    prefix=st.sampled_from(["", "a", "a/", "é", "b/-"]),
    delimiter=st.sampled_from(["", "/", "-", "a/"]),
    start=st.one_of(st.just(""), NAMES),
    end=st.one_of(st.just(""), NAMES),
    results_max=st.integers(1, 4),
    trailing=st.booleans(),
)
def test_all_pages_together_equal_a_simple_list(
    store: ObjectStore,
    names: set[str],
    prefix: str,
    delimiter: str,
    start: str,
    end: str,
    results_max: int,
    trailing: bool,
) -> None:
    for name in names:
        with store.staging([b""]) as staged:
            store.put("box", name, staged, {})
    query = ObjectQuery(
        prefix=prefix,
        delimiter=delimiter,
        start=start.encode(),
        end=end.encode(),
        results_max=results_max,
        trailing_delimiter=trailing,
    )
    objects: list[str] = []
    prefixes: list[str] = []
    following = query.start
    for _ in range(30):
        page = store.page("box", ObjectQuery(**{**_fields(query), "start": following}))
        objects += [stored.name for stored in page.objects]
        prefixes += page.prefixes
        if not page.following:
            break
        assert page.following > following or following == b""
        following = from_page_token(page_token(page.following))
    else:
        pytest.fail("the pages do not end")
    assert (objects, prefixes) == naive(names, query)
    for name in names:
        store.delete("box", name, generation=None, only=NO_CONDITIONS)


def _fields(listing: ObjectQuery) -> dict[str, object]:
    return {name: getattr(listing, name) for name in ObjectQuery.__slots__}


def test_deleted_objects_leave_no_files(store: ObjectStore) -> None:
    for size in (10, 100_000):
        with store.staging([b"x" * size]) as staged:
            store.put("box", "it", staged, {})
    store.copy(("box", "it", None), ("box", "other"), dict, source_only=NO_CONDITIONS, target_only=NO_CONDITIONS)
    store.delete("box", "it", generation=None, only=NO_CONDITIONS)
    _, file = store.open("box", "other")
    with file:
        assert file.read() == b"x" * 100_000
    store.delete("box", "other", generation=None, only=NO_CONDITIONS)
    assert not [path for path in Path(store.root, "bodies").rglob("*") if path.is_file()]
    with store.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM bodies").fetchone() == (0,)
