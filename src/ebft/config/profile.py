"""Over which completion lengths calibration looks at the feature-matching loss."""

from __future__ import annotations

from dataclasses import dataclass

from ebft.errors import ConfigError

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
STRIDE = 64


@dataclass(frozen=True)
class Profile:
    """
    Args:
        lengths: completion lengths of the profile.
        stride: tokens between its anchors. Rollouts are long, so these are fewer than the metrics' own.
    """

    lengths: tuple[int, ...] = LENGTHS
    stride: int = STRIDE

    @classmethod
    def fitting(cls, context_length: int, stride: int | None = None) -> Profile:
        """The usual one, as far as it fits."""
        stride = max(1, min(STRIDE, context_length // 2)) if stride is None else stride
        return cls(tuple(length for length in LENGTHS if length + stride <= context_length), stride)

    def check(self, context_length: int) -> None:
        if any(length < 1 for length in self.lengths) or len(set(self.lengths)) < len(self.lengths):
            raise ConfigError(f"profile_lengths={list(self.lengths)} must be different numbers of at least 1")
        if self.stride < 1:
            raise ConfigError(f"profile_stride={self.stride} must be at least 1")
        if self.lengths and max(self.lengths) + self.stride > context_length:
            raise ConfigError(
                f"profile_lengths up to {max(self.lengths)} with profile_stride={self.stride} do not fit in "
                f"context_length={context_length}; {self._way_out(context_length)}, or a longer context"
            )

    def _way_out(self, context_length: int) -> str:
        room = context_length - self.stride
        if room >= 1:
            return f"use lengths up to {room}"
        stride = Profile.fitting(context_length).stride
        return f"use a smaller profile_stride, such as {stride}, with lengths up to {context_length - stride}"
