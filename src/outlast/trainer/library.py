"""The table of values beyond plain containers that a state may contain: standard library, NumPy, PyTorch, JAX.

Each has a name and plain fields. Decoding looks names up in `MAKERS` and nowhere else.
"""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from outlast.trainer import arrays, tensors
from outlast.trainer.arrays import Unsupported
from outlast.trainer.rng import checked_python

_PATH_LENGTH = 4096
# Values that contain others; the first field is a list or dict of their elements.
CONTAINERS = frozenset(f"collections.{name}" for name in ("OrderedDict", "defaultdict", "Counter", "deque"))
# Values that may share the memory of a blob with each other.
SHARING = frozenset(("torch.Tensor", "torch.nn.Parameter"))
Fields = tuple[str, tuple[Any, ...]]
_FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (int, float, complex, str, bytes, list, tuple, dict, set, bool)
}


def fields_of(value: Any) -> Fields:
    """Return the name and the fields of a library's value. Raises Unsupported."""
    make = _PLAIN.get(type(value))
    if make is not None:
        return make(value)
    found = tensors.fields_of(value) or arrays.fields_of(value) or _time_fields(value) or _path_fields(value)
    if found is None:
        raise Unsupported(hint=_alternative(value))
    return found


def _alternative(value: Any) -> str:
    """Suggest a value to save instead."""
    kind = type(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return "save VALUE.state_dict() and restore it with load_state_dict()"
    if hasattr(kind, "__dataclass_fields__"):
        return "save dataclasses.asdict(VALUE)"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return "save VALUE._asdict()"
    if (enum := sys.modules.get("enum")) is not None and isinstance(value, enum.Enum):
        return "save VALUE.value"
    for plain in (dict, list, tuple, set, frozenset, str, bytes, int, float):
        if isinstance(value, plain):
            return f"save {plain.__name__}(VALUE)"
    return "save the numbers, text, arrays and tensors that it is made of"


# The standard library


def _ordered_fields(value: Any) -> Fields:
    # PyTorch keeps the versions of modules beside the tensors of a state_dict.
    others = vars(value).keys() - {"_metadata"}
    if others:
        raise Unsupported(f"it has the attribute {min(others)}", hint="save dict(VALUE)")
    return "collections.OrderedDict", (dict(value), getattr(value, "_metadata", None))


def _make_ordered(items: Any, metadata: Any) -> Any:
    made: Any = collections.OrderedDict(_mapping(items))
    if metadata is not None:
        made._metadata = metadata
    return made


def _default_fields(value: Any) -> Fields:
    factory = value.default_factory
    if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise Unsupported("its default_factory is not a type such as int, list or dict", hint="save dict(VALUE)")
    return "collections.defaultdict", (dict(value), None if factory is None else factory.__name__)


def _make_default(items: Any, factory: Any) -> Any:
    return collections.defaultdict(None if factory is None else _FACTORIES[factory], _mapping(items))


def _mapping(items: Any) -> Mapping[Any, Any]:
    if type(items) is not dict:
        raise ValueError("not a dict")
    return items


def _make_deque(items: Any, maxlen: Any) -> Any:
    if type(items) is not list:
        raise ValueError("not a list")
    return collections.deque(items, maxlen)


def _make_random(state: Any) -> Any:
    made = random.Random(0)
    made.setstate(checked_python(state))
    return made


def _time_fields(value: Any) -> Fields | None:
    module = sys.modules.get("datetime")
    if module is None:
        return None
    if type(value) in (module.datetime, module.time):
        zone = value.tzinfo
        if zone is not None and type(zone) is not module.timezone:
            raise Unsupported("its time zone is not a fixed offset", hint="save VALUE.isoformat()")
        return f"datetime.{type(value).__name__}", (value.isoformat(), value.fold)
    if type(value) is module.date:
        return "datetime.date", (value.isoformat(),)
    if type(value) is module.timedelta:
        return "datetime.timedelta", (value.days, value.seconds, value.microseconds)
    return None


def _make_time(kind: str) -> Callable[..., Any]:
    def make(*parts: Any) -> Any:
        import datetime

        if kind == "timedelta":
            return datetime.timedelta(*parts)
        if kind == "date":
            return datetime.date.fromisoformat(*parts)
        text, fold = parts
        return getattr(datetime, kind).fromisoformat(text).replace(fold=fold)

    return make


def _path_fields(value: Any) -> Fields | None:
    module = sys.modules.get("pathlib")
    if module is None or type(value) is not type(module.Path()):
        return None
    if len(text := str(value)) > _PATH_LENGTH:
        raise Unsupported("it is longer than any path of a file")
    return "pathlib.Path", (text,)


def _make_path(text: Any) -> Any:
    import pathlib

    if len(text) > _PATH_LENGTH:
        raise ValueError("not a path")
    return pathlib.Path(text)


_PLAIN: dict[type, Callable[[Any], Fields]] = {
    collections.OrderedDict: _ordered_fields,
    collections.defaultdict: _default_fields,
    collections.Counter: lambda value: ("collections.Counter", (dict(value),)),
    collections.deque: lambda value: ("collections.deque", (list(value), value.maxlen)),
    random.Random: lambda value: ("random.Random", (value.getstate(),)),
}

MAKERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _make_ordered,
    "collections.defaultdict": _make_default,
    "collections.Counter": lambda items: collections.Counter(_mapping(items)),
    "collections.deque": _make_deque,
    "random.Random": _make_random,
    "datetime.datetime": _make_time("datetime"),
    "datetime.time": _make_time("time"),
    "datetime.date": _make_time("date"),
    "datetime.timedelta": _make_time("timedelta"),
    "pathlib.Path": _make_path,
    "numpy.ndarray": arrays.make_array,
    "numpy.generic": arrays.make_scalar,
    "numpy.dtype": arrays.make_dtype,
    "numpy.random.Generator": arrays.make_generator,
    "numpy.random.RandomState": arrays.make_random_state,
    "torch.Tensor": tensors.make_tensor,
    "torch.nn.Parameter": tensors.make_parameter,
    "torch.Size": tensors.make_size,
    "torch.dtype": tensors.make_dtype,
    "torch.device": tensors.make_device,
    "torch.Generator": tensors.make_generator,
    "jax.Array": tensors.make_jax_array,
}
