"""A public transform of images: coefficients of low frequency of a crop, a fixed function of one record.

An image less a public brightness, cropped to its middle c x c pixels x, has the orthonormal 2D DCT-II

    X[u, v] = a(u) a(v) sum over i, j of x[i, j] cos(pi (2 i + 1) u / 2 c) cos(pi (2 j + 1) v / 2 c),

a(0)^2 = 1 / c and a(u)^2 = 2 / c for u > 0. It keeps distances, so a part of it never lengthens a record. No
other record is looked at: the guarantee covers it at no cost, where principal components have one.

Reference: N. Ahmed, T. Natarajan, K. R. Rao: Discrete Cosine Transform, IEEE Transactions on Computers C-23
(1974), 90-93, doi:10.1109/T-C.1974.223784.
"""

from __future__ import annotations

from math import isqrt

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.data.source import Floats

FIELD = "scenario.data.transform"
COLOURS = ("red", "green", "blue")


class Transform(Section):
    """Crops images and keeps their coefficients of lowest frequency, of each colour by itself."""

    dct: int = Field(
        ge=1,
        description="Keep so many coefficients (u, v) of the orthonormal two-dimensional DCT-II of each "
        "colour: those of least u + v, and of these the ones of least u; at most crop^2.",
    )
    crop: int | None = Field(
        None, ge=1, description="Take the middle pixels alone, so many of a side; default the whole image."
    )
    subtract: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Public brightness that is subtracted first: 0 is the lower end of the declared range, 1 "
        "its upper end; best near the images' mean: 0.25 for strokes on black, 0.5 for photographs.",
    )

    def shape(self, pixels: int) -> tuple[int, int, int]:
        """Colours, pixels of an image's side and of the crop's, of records of so many numbers. InputError
        unless they are square images, grey or of three colours one after the other, that have such a crop and
        so many coefficients.
        """
        colours = 1 if isqrt(pixels) ** 2 == pixels else len(COLOURS)  # never both: 3 is no square
        side = isqrt(pixels // colours)
        if colours * side**2 != pixels:
            hint = f"is for square images, of s x s or 3 x s x s numbers, and a record has {pixels:,}"
            raise InputError(FIELD, self.model_dump(exclude_unset=True), hint)
        crop = side if self.crop is None else self.crop
        if crop > side:
            raise InputError(f"{FIELD}.crop", crop, f"at most {side}, the pixels of an image's side")
        if self.dct > crop**2:
            hint = f"at most {crop**2:,}, the pixels of {crop} x {crop}"
            raise InputError(f"{FIELD}.dct", self.dct, hint)
        return colours, side, crop

    def order(self, crop: int) -> list[tuple[int, int]]:
        """The (u, v) that are kept, in their order: u numbers frequencies from top to bottom.

        >>> Transform(dct=5).order(3)
        [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
        """
        every = [(u, v) for u in range(crop) for v in range(crop)]
        return sorted(every, key=lambda uv: (sum(uv), uv))[: self.dct]

    def width(self, pixels: int) -> int:
        """The number of coefficients of a record of so many numbers; InputError as `shape`."""
        return self.shape(pixels)[0] * self.dct

    def names(self, pixels: int) -> list[str]:
        """Names of the coefficients: dct_u_v, of colour images red_dct_u_v, ...; InputError as `shape`."""
        colours, _, crop = self.shape(pixels)
        before = [f"{colour}_" for colour in COLOURS] if colours > 1 else [""]
        return [f"{colour}dct_{u}_{v}" for colour in before for u, v in self.order(crop)]

    def apply(self, values: Floats) -> Floats:
        """Coefficients (n, k) of images (n, d), a row each, colour by colour; without `subtract`.

        No product of matrices: the last digits of one depend on n and on the processor.
        """
        from scipy import fft  # slow to import

        colours, side, crop = self.shape(values.shape[1])
        edge = (side - crop) // 2  # of an odd rest, the pixel more is left out below and to the right
        inner = slice(edge, edge + crop)
        images = values.reshape(-1, colours, side, side)[:, :, inner, inner]
        u, v = zip(*self.order(crop), strict=True)
        found: Floats = fft.dctn(images, axes=(2, 3), norm="ortho")[:, :, u, v].reshape(len(values), -1)
        return found

    def squared_norms(self, pixels: int) -> tuple[float, float]:
        """As in `Outline`, where declared ranges are mapped to [-1, 1]."""
        colours, _, crop = self.shape(pixels)
        largest, centre = 2 * max(self.subtract, 1 - self.subtract), 1 - 2 * self.subtract
        return colours * (crop * largest) ** 2, colours * (self.dct / 3 + (crop * centre) ** 2)
