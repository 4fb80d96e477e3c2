"""A matplotlib backend that shows figures as results: MPLBACKEND=module://toolhub_figures.

matplotlib finds it by name, inside, where none of our files are; so a finder makes it when matplotlib asks.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from toolhub_sandbox.inside.display import Bundle, png_of

MODULE = "toolhub_figures"
BACKEND = f"module://{MODULE}"
on_show: list[Callable[[Bundle], None]] = []
"""Called with each figure that is shown."""


def show(*, block: bool | None = None) -> None:
    """Show and close every open figure, in the order in which they were made."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if figure.axes or figure.texts or figure.images:
            for callback in on_show:
                callback({"text/plain": repr(figure), "image/png": png_of(figure)})
    pyplot.close("all")


def close() -> None:
    """Forget every open figure."""
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the backend's module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == MODULE else None

    def exec_module(self, module: ModuleType) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        module.__dict__.update(FigureCanvas=FigureCanvasAgg, show=show)
