"""What code shows: Jupyter's representations, figures, tables."""

from __future__ import annotations

import anyio
import pytest

from tests.toolhub_sandbox.local.sandbox_stage import patience

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n"


async def run(sandbox, code):
    with patience():
        return await sandbox.exec_code(code)


@pytest.fixture
async def data(scope):
    with anyio.fail_after(60):  # the first one loads pandas and matplotlib
        return await scope.create("data")


async def test_a_result_has_every_representation_it_offers(sandbox):
    code = """
class Shown:
    def __repr__(self): return '<shown>'
    def _repr_html_(self): return '<b>ż</b>'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG\\r\\n'
Shown()"""
    done = await run(sandbox, code)
    (shown,) = done.displays
    assert (shown.text, shown.html, shown.png, shown.is_result) == ("<shown>", "<b>ż</b>", PNG, True)
    assert shown.data["image/svg+xml"] == "<svg/>"
    assert (done.result, done.images) == ("<shown>", (PNG,))


async def test_what_is_displayed_on_the_way_comes_before_the_result(sandbox):
    done = await run(sandbox, "display(1, [2])\nfor n in 'ab': display(n)\n'end'")
    assert [shown.text for shown in done.displays] == ["1", "[2]", "'a'", "'b'", "'end'"]
    assert [shown.is_result for shown in done.displays] == [False] * 4 + [True]


async def test_nothing_of_one_execution_is_shown_by_the_next(sandbox):
    await run(sandbox, "display('old')")
    assert (await run(sandbox, "pass")).displays == ()


async def test_a_figure_is_shown_once_at_the_end_of_the_code(data):
    done = await run(data, "import matplotlib.pyplot as plt\nlines = plt.plot([1, 2])")
    (image,) = done.images
    assert image.startswith(PNG)
    assert done.result is None
    assert (await run(data, "pass")).images == ()


async def test_a_figure_that_is_shown_is_not_shown_again_at_the_end(data):
    done = await run(
        data, "import matplotlib.pyplot as plt\nlines = plt.plot([1, 2])\nplt.show()\nplt.show()\nprint('x')"
    )
    assert (len(done.images), done.stdout, done.stderr) == (1, "x\n", "")


async def test_a_figure_as_the_last_value_is_shown_once(data):
    done = await run(data, "import matplotlib.pyplot as plt\nfig, axes = plt.subplots()\nfig")
    assert len(done.images) == 1
    assert (len(done.displays), done.displays[0].is_result) == (1, True)
    assert done.result.startswith("<Figure size")


async def test_every_figure_is_shown_in_order(data):
    code = (
        "import matplotlib.pyplot as plt\nfor n in 1, 2, 3:\n    x = plt.figure(figsize=(n, 1))\n    y = plt.plot([n])"
    )
    done = await run(data, code)
    assert len(set(done.images)) == 3
    widths = [int.from_bytes(image[16:20], "big") for image in done.images]
    assert widths == sorted(widths)


async def test_figures_made_before_an_error_do_not_leak_into_the_next(data):
    done = await run(data, "import matplotlib.pyplot as plt\nlines = plt.plot([1])\n1 / 0")
    assert (done.error.name, len(done.images)) == ("ZeroDivisionError", 1)
    assert (await run(data, "print('clean')")).images == ()


async def test_a_closed_figure_is_not_shown(data):
    assert (await run(data, "import matplotlib.pyplot as plt\nlines = plt.plot([1])\nplt.close()")).displays == ()


async def test_a_table_is_text_and_html(data):
    done = await run(data, "import pandas as pd\npd.DataFrame({'a': [1, 2], 'ż': ['x', 'y']})")
    (shown,) = done.displays
    assert shown.text.splitlines() == ["   a  ż", "0  1  x", "1  2  y"]
    assert "<th>ż</th>" in shown.html


async def test_pandas_plots_are_figures(data):
    done = await run(data, "import pandas as pd\npd.Series([1, 3, 2]).plot();")
    assert (len(done.images), done.error, done.stderr) == (1, None, "")


async def test_matplotlib_works_where_it_is_not_loaded_beforehand(sandbox):
    done = await run(sandbox, "import matplotlib.pyplot as plt\nlines = plt.plot([1, 2])")
    assert (len(done.images), done.error) == (1, None)


async def test_sandboxes_do_not_draw_the_same_random_numbers(scope, data):
    with patience():
        other = await scope.create("data")
    for code in ("import random; random.random()", "import numpy; numpy.random.random()", "import uuid; uuid.uuid4()"):
        one, two = await run(data, code), await run(other, code)
        assert None not in (one.result, two.result)
        assert one.result != two.result


async def test_a_new_interpreter_does_not_draw_the_numbers_of_the_last(data):
    code = "import random, numpy; (random.random(), numpy.random.random())"
    before = await run(data, code)
    assert (await run(data, "import os; os._exit(1)")).state == "lost"
    assert (await run(data, code)).result != before.result
