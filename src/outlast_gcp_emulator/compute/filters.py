"""Filter expressions, order and pages of lists, as in Google's Compute API.

    expression = term ((AND | OR)? term)*        term = (NOT | -)? (comparison | "(" expression ")")
    comparison = field (= | != | < | <= | > | >= | : | eq | ne) value

`eq` and `ne` match the whole value against a regular expression; `:` tests whether the value contains another.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from outlast_gcp_emulator.compute.refs import ROOT, Doc
from outlast_gcp_emulator.errors import ApiError, invalid

Predicate = Callable[[Doc], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<sign>!=|<=|>=|[=<>:()])|(?P<word>[^\s=<>:()!"']+))"""
)
_SIGNS = ("=", "!=", "<", "<=", ">", ">=", ":", "eq", "ne")
PAGE_MAX = 500
# The start of a link in a filter: with the host of the API or of all APIs, of any version; with this server's address,
# which a token may follow. A regular expression may escape the dots and slashes.
_URL = re.compile(r"https?:(?:\\?/){2}[^/\s]+/(?:[^/\s]+/)?compute\\?/[a-z0-9]+\\?/(?=projects)")
_PREFIXES = ("https://www.googleapis.com/compute/v1/", "https://compute.googleapis.com/compute/v1/")


def parse(text: str) -> Predicate:
    """Parse a filter into a predicate of resources. Raises ApiError for an invalid filter."""
    tokens = _tokens(text)
    if not tokens:
        return lambda doc: True
    parser = _FilterParser(text, tokens)
    test = parser.expression()
    if parser.tokens:
        raise parser.error()
    return test


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while text[at:].strip():
        if (found := _TOKEN.match(text, at)) is None:
            raise _invalid_filter(text)
        kind = str(found.lastgroup)
        value = found[kind]
        if kind == "quoted":
            value = re.sub(r"\\([\"'\\])", r"\1", value[1:-1])
        tokens.append((kind, value))
        at = found.end()
    return tokens


def _invalid_filter(text: str) -> ApiError:
    return invalid(f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")


class _FilterParser:
    """A recursive-descent parser over the tokens of one filter."""

    def __init__(self, text: str, tokens: list[tuple[str, str]]) -> None:
        self.text = text
        self.tokens = tokens

    def error(self) -> ApiError:
        return _invalid_filter(self.text)

    def next_is(self, *words: str) -> bool:
        return bool(self.tokens) and self.tokens[0][0] != "quoted" and self.tokens[0][1] in words

    def take(self, *kinds: str) -> str:
        if not self.tokens or self.tokens[0][0] not in kinds:
            raise self.error()
        return self.tokens.pop(0)[1]

    def expression(self) -> Predicate:
        tests = [self.conjunction()]
        while self.next_is("OR"):
            self.tokens.pop(0)
            tests.append(self.conjunction())
        return lambda doc: any(test(doc) for test in tests)

    def conjunction(self) -> Predicate:
        tests = [self.term()]
        while self.tokens and not self.next_is(")", "OR"):
            if self.next_is("AND"):
                self.tokens.pop(0)
            tests.append(self.term())
        return lambda doc: all(test(doc) for test in tests)

    def term(self) -> Predicate:
        if self.next_is("NOT", "-"):
            self.tokens.pop(0)
            inner = self.term()
            return lambda doc: not inner(doc)
        if self.next_is("("):
            self.tokens.pop(0)
            inner = self.expression()
            if not self.next_is(")"):
                raise self.error()
            self.tokens.pop(0)
            return inner
        return self.comparison()

    def comparison(self) -> Predicate:
        field = self.take("word", "quoted")
        negated = field.startswith("-")
        field = field.removeprefix("-")
        sign = self.take("sign", "word")
        if sign not in _SIGNS:
            raise self.error()
        value = self.take("word", "quoted")
        # A timestamp and a link contain `:`, which is also an operator.
        while self.next_is(":") and (sign != ":" or value.startswith("http")):
            value += self.tokens.pop(0)[1] + self.take("word", "quoted")
        compare = self._compare(sign, value)
        return lambda doc: compare(_values(doc, field)) is not negated

    def _compare(self, sign: str, value: str) -> Callable[[list[Any]], bool]:
        if sign in ("eq", "ne"):
            value = _URL.sub(re.escape(ROOT), value)
            try:
                pattern = re.compile(value)
            except re.error as problem:
                raise self.error() from problem
            # Google's links begin with `https://`, which a pattern such as `https.*zones/a` may contain.
            return lambda found: any(any(map(pattern.fullmatch, _forms(item))) for item in found) is (sign == "eq")
        value = _URL.sub(ROOT, value)
        if sign == ":":
            return lambda found: any(_has(item, value) for item in found)
        if sign in ("=", "!="):
            return lambda found: any(_equal(item, value) for item in found) is (sign == "=")
        return lambda found: any(_ordered(item, sign, value) for item in found)


def _forms(value: Any) -> list[str]:
    """Return the text of a value; of a link, also the forms in which Google writes it."""
    text = _text(value)
    return [text, *(prefix + text.removeprefix(ROOT) for prefix in _PREFIXES)] if text.startswith(ROOT) else [text]


def _values(doc: Any, field: str) -> list[Any]:
    """Return the values at a path such as `labels.owner`; a list on the way contributes all its elements."""
    found = [doc]
    parts = field.split(".")
    for at, part in enumerate(parts):
        below: list[Any] = []
        for value in found:
            for item in value if isinstance(value, list) else [value]:
                if not isinstance(item, dict):
                    continue
                rest = ".".join(parts[at:])
                if rest in item and rest != part:
                    return [item[rest]]
                if part in item:
                    below.append(item[part])
        found = below
    return [item for value in found for item in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _equal(value: Any, wanted: str) -> bool:
    text = _text(value)
    if "*" in wanted:
        return re.fullmatch(".*".join(map(re.escape, wanted.split("*"))), text) is not None
    if isinstance(value, bool):
        return text == wanted.lower()
    number = _number(value)
    return text == wanted or (number is not None and number == _number(wanted))


def _has(value: Any, wanted: str) -> bool:
    if wanted == "*":
        return value not in (None, "", [], {})
    if isinstance(value, dict):
        return wanted in value
    return wanted.strip("*").lower() in _text(value).lower()


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _ordered(value: Any, sign: str, wanted: str) -> bool:
    left, right = _number(value), _number(wanted)
    pair: tuple[Any, Any] = (left, right) if left is not None and right is not None else (_text(value), wanted)
    order = (pair[0] > pair[1]) - (pair[0] < pair[1])
    return bool({"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[sign])


def select_page(items: list[tuple[str, Doc]], query: Mapping[str, str]) -> tuple[list[tuple[str, Doc]], str]:
    """Filter, sort and cut keyed resources as the query demands; return one page and the token of the next."""
    test = parse(query.get("filter", ""))
    return _page(_ordered_items([item for item in items if test(item[1])], query.get("orderBy", "")), query)


def _ordered_items(items: list[tuple[str, Doc]], order_by: str) -> list[tuple[str, Doc]]:
    """Sort by key or by creation time. Raises ApiError for another order."""
    if order_by in ("", "name"):
        return sorted(items, key=lambda item: item[0])
    if order_by in ("creationTimestamp desc", "creationTimestamp"):
        latest_first = order_by.endswith("desc")
        return sorted(items, key=lambda item: str(item[1].get("creationTimestamp", "")), reverse=latest_first)
    raise invalid(f"Invalid value for field 'orderBy': '{order_by}'. Use `name` or `creationTimestamp desc`.")


def _page(items: list[tuple[str, Doc]], query: Mapping[str, str]) -> tuple[list[tuple[str, Doc]], str]:
    """Return the requested page, and the token of the next one, empty at the end.

    A token names the last item of the page before it, so that items deleted in between do not shift the pages.
    """
    size = query.get("maxResults", "")
    if size and (not size.isdigit() or int(size) > PAGE_MAX):
        raise invalid(f"Invalid value for field 'maxResults': '{size}'. Must be between 0 and {PAGE_MAX}.")
    start = _after(items, query["pageToken"]) if query.get("pageToken") else 0
    end = start + (int(size or 0) or PAGE_MAX)
    token = base64.urlsafe_b64encode(items[end - 1][0].encode()).decode() if end < len(items) else ""
    return items[start:end], token


def _after(items: list[tuple[str, Doc]], token: str) -> int:
    try:
        before = base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError as problem:
        raise invalid(f"Invalid value for field 'pageToken': '{token}'. The page token is invalid.") from problem
    for at, (key, _) in enumerate(items):
        if key == before:
            return at + 1
    return sum(key < before for key, _ in items)
