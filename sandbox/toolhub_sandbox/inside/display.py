"""What a value looks like: the MIME types that Jupyter would show, as text."""

from __future__ import annotations

import base64
import sys
from typing import Any

Bundle = dict[str, str]

# In the order in which front ends prefer them.
_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
}


def bundle_of(value: object) -> Bundle:
    """Return a value's representations by MIME type; images in base64."""
    bundle = {"text/plain": _plain(value)}
    if isinstance(value, type):
        return bundle  # a class's methods are for its instances
    figure = _figure(value)
    if figure is not None:
        return bundle | {"image/png": figure}
    mime = _call(value, "_repr_mimebundle_")
    if isinstance(mime, tuple):
        mime = mime[0]
    if isinstance(mime, dict):
        bundle |= {str(kind): _text(data) for kind, data in mime.items()}
    for method, kind in _METHODS.items():
        if kind not in bundle and (data := _call(value, method)) is not None:
            bundle[kind] = _text(data[0] if isinstance(data, tuple) else data)
    return bundle


def _plain(value: object) -> str:
    try:
        return repr(value)
    except Exception as exc:
        return f"<{type(value).__name__} whose repr failed: {type(exc).__name__}: {exc}>"


def _call(value: object, method: str) -> Any:
    """A representation that fails or does not apply is none, as in Jupyter."""
    try:
        function = getattr(value, method, None)
        return function() if callable(function) else None
    except Exception:
        return None


def _text(data: object) -> str:
    if isinstance(data, bytes):
        return base64.b64encode(data).decode()
    if isinstance(data, str):
        return data
    import json

    return json.dumps(data, default=repr)


def _figure(value: object) -> str | None:
    figures = sys.modules.get("matplotlib.figure")
    if figures is None or not isinstance(value, figures.Figure):
        return None
    return png_of(value)


def png_of(figure: Any) -> str:
    """Return a matplotlib figure as a PNG in base64."""
    import io

    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches="tight")
    return base64.b64encode(image.getvalue()).decode()
