"""Reading torch's store, whose port asks nobody for a proof: what comes from there is a stranger's
word until it has been checked."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rueda import errors

# Of a value: an error in ASCII.
_BYTES_MAX = 12 * 1_000 + 100
#: Characters of a text in one.
TEXT_MAX = 1_000
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")

#: Raises a ValueError that says what was wanted, or returns the value that it was given.
Check = Callable[[Any], Any]


class Refused(errors.RuedaError):
    """A rank has written into a key why the group can't start."""

    def __init__(self, key: str, why: str) -> None:
        said = f"key '{key}' of torch's store"
        text = why if "torch's store" in why else f"{why} (as {said} says)"
        super().__init__(text, errors.Status.FAILED_PRECONDITION)


def wrong(key: str, why: str) -> errors.RuedaError:
    """What a reader raises when a key holds something that no rank has written there."""
    return errors.RuedaError(
        f"torch's store: key '{key}' {why}. No rank wrote that for this group. Can a stranger "
        "reach the store, or does another job use it? See docs/guides/security.md",
        errors.Status.DATA_LOSS,
    )


def get(store: Any, key: str, patience: timedelta | None = None) -> bytes:
    """The value of a key, up to a limit of bytes. Waits for it: for `patience`, and then raises a
    TimeIsUpError; or as long as the store itself does, and then raises what the store does."""
    try:
        if patience is not None:
            _await(store, key, patience)
        value = store.get(key)
    except (dist.DistError, errors.TimeIsUpError):  # which key did not come, or the store is gone
        raise
    except Exception as error:
        raise wrong(key, f"can't be read: {shown(str(error))}") from error
    if not isinstance(value, bytes):
        raise wrong(key, f"holds a {type(value).__name__}, not bytes")
    if len(value) > _BYTES_MAX:
        raise wrong(key, f"holds {len(value)} bytes, more than {_BYTES_MAX}")
    return value


def _await(store: Any, key: str, patience: timedelta) -> None:
    begin = time.monotonic()
    try:
        store.wait([key], patience)
    except dist.DistError as error:
        if time.monotonic() - begin < patience.total_seconds():
            raise  # the store is gone
        raise errors.TimeIsUpError(
            f"key '{key}' of torch's store was not written within {patience.total_seconds():g} s, "
            "though all ranks had come: is one of them stuck, or gone?",
            errors.Status.DEADLINE_EXCEEDED,
        ) from error


def take(store: Any, key: str, patience: timedelta | None = None) -> bytes:
    """The same of a key that only this rank reads; it is deleted."""
    value = get(store, key, patience)
    forget(store, key)
    return value


def forget(store: Any, key: str) -> None:
    """Deletes it, if the store can."""
    with contextlib.suppress(Exception):
        store.delete_key(key)


def number(store: Any, key: str) -> int:
    """The value of a key that holds a whole number below 10^18, and not below 0."""
    value = get(store, key)
    if _NUMBER.fullmatch(value) is None:
        raise wrong(key, f"holds {shown(value)} instead of a number")
    return int(value)


def fields(
    key: str, value: bytes, checks: dict[str, Check], *, may_refuse: bool = False
) -> dict[str, Any]:
    """The fields of a value, which is a JSON object: all that have a check, and no others. With
    `may_refuse` there may be an `error` in their place, and Refused is raised."""
    try:
        found = json.loads(value.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise wrong(key, f"holds {shown(value)}, which is no JSON object: {error}") from error
    if not isinstance(found, dict):
        raise wrong(key, f"holds {shown(value)}, which is no JSON object")
    if may_refuse and found.keys() == {"error"}:
        raise Refused(key, _checked(key, "error", text, found))
    for name in found.keys() - checks.keys():
        raise wrong(key, f"has an unknown field {shown(name)}")
    return {name: _checked(key, name, check, found) for name, check in checks.items()}


def shown(value: object) -> str:
    """The value as an error shows it: no control characters, and not too much."""
    whole = repr(value)
    return whole if len(whole) <= 60 else f"{whole[:60]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field comes twice")
    return found


def _checked(key: str, name: str, check: Check, found: dict[str, Any]) -> Any:
    if name not in found:
        raise wrong(key, f"has no field '{name}'")
    try:
        return check(found[name])
    except ValueError as error:
        raise wrong(key, f"has {shown(found[name])} in its field '{name}': {error}") from error


# ---- checks ----


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false was expected")
    return value


def text(value: Any) -> str:
    """Up to 1,000 characters that can be printed."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > TEXT_MAX:
        raise ValueError(f"up to {TEXT_MAX} printable characters were expected")
    return value


def matching(pattern: str, what: str) -> Check:
    """A text of a given form."""
    form = re.compile(pattern, re.ASCII)

    def check(value: Any) -> str:
        if not isinstance(value, str) or form.fullmatch(value) is None:
            raise ValueError(f"{what} was expected")
        return value

    return check


def between(low: int, high: int) -> Check:
    """A whole number in a range."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high} was expected")
        return value

    return check
