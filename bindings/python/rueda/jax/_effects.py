"""The wall toward what JAX has not published: an effect whose operations keep their order.

JAX hands a token from each operation with the effect to the next one, in traced order, through
loops, branches and nested functions, and from each compiled function to the next one that a thread
calls. No other file imports anything that begins with an underscore.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.interpreters import mlir

try:
    from jax._src import core as _core
    from jax._src import dispatch as _dispatch
    from jax._src import effects as _effects

    class _Order(_effects.Effect):
        """What all collectives have."""

        def __eq__(self, other: object) -> bool:
            return isinstance(other, _Order)

        def __hash__(self) -> int:
            return hash(_Order)

        def __str__(self) -> str:
            return "rueda"

    for _kind in (
        _effects.ordered_effects,
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
    ):
        _kind.add_type(_Order)
    _token = _core.abstract_token
    _tokens: Any = _dispatch.runtime_tokens
    _is_top_level: Any = _core.trace_state_clean
except (ImportError, AttributeError) as _error:
    raise ImportError(
        f"rueda.jax can't be used with jax {jax.__version__}, whose effects are not those that it "
        f"knows: {_error}"
    ) from _error

#: The effect.
order: Any = _Order()


def is_eager() -> bool:
    """Whether nothing is being traced, differentiated or vectorized."""
    return bool(_is_top_level())


def lower(ctx: Any, target: str, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """A call of XLA's FFI that comes behind the one before and ahead of the next."""
    rule = jax.ffi.ffi_lowering(target, has_side_effect=True)
    inner = ctx.replace(avals_in=[_token, *ctx.avals_in], avals_out=[_token, *ctx.avals_out])
    after, *results = rule(inner, ctx.tokens_in.get(order), *operands, **attributes)
    ctx.set_tokens_out(mlir.TokenSet({order: after}))
    return results


def wait() -> None:
    """Until the operations of all compiled functions that this thread has called have ended. Raises
    what JAX raises when one has failed; after that they are forgotten, so that later ones don't
    fail for the same reason."""
    try:
        _tokens.block_until_ready()
    except BaseException:
        _tokens.clear()
        raise
