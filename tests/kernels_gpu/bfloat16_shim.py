"""Makes bfloat16 right in Triton's interpreter, where 3.6 to 3.9 get it silently wrong.

The interpreter keeps bfloat16 as its bits in uint16 arrays, and numpy then computes with the
bits as integers: a product of two matrices is off by 1e9, and a cast to bfloat16 cuts instead of
rounding. Here a bfloat16 value is a float32 array of numbers that bfloat16 can represent. It
becomes 16 bits only where it meets memory (load, store) or is looked at as bits (bitcast).

Invariant: every `TensorHandle` of type bfloat16 that holds float32 data is rounded, to nearest,
ties to even, when it is made. One operation in float32 followed by that rounding is the bfloat16
operation: float32 has more than twice the bits and two (Figueroa, "When is double rounding
innocuous?", 1995); only `fma` may differ by a rounding of a tie.

For tests alone. 8-bit floats and atomics on bfloat16 are refused: nobody has checked them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_BITS = tl.uint16
_LOW_HALF = np.uint32(0xFFFF)
_HIGH_HALF = np.uint32(0xFFFF0000)
_QUIET_NAN = np.uint32(0x00400000)


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 -> the nearest bfloat16 numbers, as float32; what is one already keeps its bits."""
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(np.shape(values))
    if not (bits & _LOW_HALF).any():
        return values
    tie_to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = (bits + tie_to_even) & _HIGH_HALF
    # A NaN whose payload is in the half that falls away must not round to infinity.
    nan = np.isnan(values) & ((bits & _LOW_HALF) != 0)
    return np.where(nan, (bits & _HIGH_HALF) | _QUIET_NAN, rounded).view(np.float32)


def _cut_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 -> bfloat16 towards zero (`fp_downcast_rounding="rtz"`)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    nan = np.isnan(values)
    return np.where(nan, bits | _QUIET_NAN, bits & _HIGH_HALF).astype(np.uint32).view(np.float32)


def _to_bits(values: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _from_bits(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _is_bfloat16(dtype: Any) -> bool:
    return not isinstance(dtype, tl.pointer_type) and dtype.scalar == tl.bfloat16


def _holds_numbers(handle: TensorHandle) -> bool:
    """Comparisons are labelled with their operands' type but hold booleans."""
    return _is_bfloat16(handle.dtype) and handle.data.dtype == np.float32


def _as_bits(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(_to_bits(handle.data), _BITS) if _holds_numbers(handle) else handle


def _refuse(what: str) -> None:
    raise NotImplementedError(f"the bfloat16 shim does not cover {what}")


def _np_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_np_dtype(dtype: Any) -> np.dtype:
        return np.dtype(np.float32) if _is_bfloat16(dtype) else original(dtype)

    return get_np_dtype


def _fits(original: Callable[..., Any]) -> Callable[..., Any]:
    def validate_np_data_size(data: np.ndarray, dtype: Any) -> bool:
        if _is_bfloat16(dtype) and data.dtype in (np.float32, np.bool_):
            return True
        return bool(original(data, dtype))

    return validate_np_data_size


def _post_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def post_init(self: TensorHandle) -> None:
        if _holds_numbers(self):
            self.data = round_to_bfloat16(self.data)
        original(self)

    return post_init


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_masked_load(
        self: Any, ptrs: Any, mask: Any, other: Any, *args: Any, **kwargs: Any
    ) -> TensorHandle:
        if not _is_bfloat16(ptrs.get_element_ty()):
            return original(self, ptrs, mask, other, *args, **kwargs)
        of_bits = TensorHandle(ptrs.data, tl.pointer_type(_BITS))
        fill = None if other is None else _as_bits(other)
        loaded = original(self, of_bits, mask, fill, *args, **kwargs)
        return TensorHandle(_from_bits(loaded.data), tl.bfloat16)

    return create_masked_load


def _store(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_masked_store(
        self: Any, ptrs: Any, value: Any, mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return original(self, ptrs, _as_bits(value), mask, *args, **kwargs)

    return create_masked_store


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast_impl(self: Any, src: TensorHandle, dst_type: Any) -> TensorHandle:
        if not (_is_bfloat16(src.dtype) or _is_bfloat16(dst_type)):
            return original(self, src, dst_type)
        # `_get_np_dtype` says float32 for bfloat16, and making the handle rounds.
        data = src.data.astype(interpreter._get_np_dtype(dst_type))
        return TensorHandle(data, dst_type.scalar)

    return cast_impl


def _float_cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_fp_to_fp(
        self: Any, src: TensorHandle, dst_type: Any, rounding_mode: Any
    ) -> TensorHandle:
        if not (_is_bfloat16(src.dtype) or _is_bfloat16(dst_type)):
            return original(self, src, dst_type, rounding_mode)
        if 8 in (src.dtype.scalar.primitive_bitwidth, dst_type.scalar.primitive_bitwidth):
            _refuse("8-bit floats")
        if rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ:
            return TensorHandle(_cut_to_bfloat16(src.data.astype(np.float32)), tl.bfloat16)
        return self.cast_impl(src, dst_type)

    return create_fp_to_fp


def _bitcast(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_bitcast(self: Any, src: TensorHandle, dst_type: Any) -> TensorHandle:
        src = _as_bits(src)
        if not _is_bfloat16(dst_type):
            return original(self, src, dst_type)
        return TensorHandle(_from_bits(src.data.view(np.uint16)), tl.bfloat16)

    return create_bitcast


def _fabs(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_fabs(self: Any, arg: TensorHandle) -> TensorHandle:
        if _holds_numbers(arg):
            return TensorHandle(np.abs(arg.data), tl.bfloat16)
        return original(self, arg)

    return create_fabs


def _atomic(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_atomic(self: Any, *args: Any) -> TensorHandle:
        if any(isinstance(arg, TensorHandle) and _is_bfloat16(arg.dtype) for arg in args):
            _refuse("atomics")
        return original(self, *args)

    return create_atomic


def _constant(_original: Callable[..., Any]) -> Callable[..., Any]:
    """3.6 has no such method."""

    def get_bf16(self: Any, value: float) -> TensorHandle:
        return TensorHandle(np.array([value], dtype=np.float32), tl.bfloat16)

    return get_bf16


_MISSING = object()
_PATCHES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (interpreter, "_get_np_dtype", _np_dtype),
    (interpreter, "_validate_np_data_size", _fits),
    (TensorHandle, "__post_init__", _post_init),
    (InterpreterBuilder, "get_bf16", _constant),
    (InterpreterBuilder, "create_masked_load", _load),
    (InterpreterBuilder, "create_masked_store", _store),
    (InterpreterBuilder, "cast_impl", _cast),
    (InterpreterBuilder, "create_fp_to_fp", _float_cast),
    (InterpreterBuilder, "create_bitcast", _bitcast),
    # Aliases of `create_bitcast` made in the class body, so they need the patch too.
    (InterpreterBuilder, "create_int_to_ptr", _bitcast),
    (InterpreterBuilder, "create_ptr_to_int", _bitcast),
    (InterpreterBuilder, "create_fabs", _fabs),
    (InterpreterBuilder, "create_atomic_rmw", _atomic),
    (InterpreterBuilder, "create_atomic_cas", _atomic),
)
_originals: list[tuple[Any, str, Any]] = []


def install() -> None:
    """From now on, in this process. Twice is once."""
    if _originals:
        return
    for owner, name, patch in _PATCHES:
        original = getattr(owner, name, _MISSING)
        _originals.append((owner, name, original))
        setattr(owner, name, patch(original))


def uninstall() -> None:
    while _originals:
        owner, name, original = _originals.pop()
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextmanager
def removed() -> Iterator[None]:
    """The interpreter as it comes, for a negative control."""
    uninstall()
    try:
        yield
    finally:
        install()
