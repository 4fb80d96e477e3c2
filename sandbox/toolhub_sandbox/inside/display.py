"""How values and figures are shown: as the MIME types that Jupyter would use, in text.

The second half is a matplotlib backend, MPLBACKEND=module://toolhub_figures. matplotlib imports a backend by name, and
no file of ours can be imported inside a sandbox. So a finder makes that module when matplotlib asks for it.
"""

from __future__ import annotations

import base64
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

MimeBundle = dict[str, str]

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


def mime_bundle(value: object) -> MimeBundle:
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


# --- figures of matplotlib --------------------------------------------------------------------------------------------

MODULE = "toolhub_figures"
MATPLOTLIB_BACKEND = f"module://{MODULE}"
on_figure: list[Callable[[MimeBundle], None]] = []
"""Called with each figure that is shown."""


def show_figures(*, block: bool | None = None) -> None:
    """Show and close every open figure, in the order in which they were made."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if figure.axes or figure.texts or figure.images:
            for callback in on_figure:
                callback({"text/plain": repr(figure), "image/png": png_of(figure)})
    pyplot.close("all")


def close_figures() -> None:
    """Forget every open figure."""
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")


class FigureBackendFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the backend's module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == MODULE else None

    def exec_module(self, module: ModuleType) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        module.__dict__.update(FigureCanvas=FigureCanvasAgg, show=show_figures)
