"""Draws the pictures of the documentation: `make pictures` writes docs/pictures/*.svg."""

from __future__ import annotations

import sys
from pathlib import Path

from docsite.svg import Picture

FOLDER = Path(__file__).parents[1] / "pictures"


def architecture() -> Picture:
    """The processes, and who talks to whom."""
    p = Picture(1000, 430, "Clients, the hub, and the processes that the hub owns")
    p.text(20, 22, "Your processes", bold=True)
    p.box(20, 36, 220, 62, "ToolManager\nMiroFlow, MiroThinker", fill="blue")
    p.box(20, 124, 220, 62, "toolhub.connect()\nany Python agent", fill="blue")
    p.box(20, 212, 220, 62, "any MCP client\nagent frameworks, IDEs", fill="blue")
    p.box(20, 300, 220, 62, "any agent's model client\nOpenAI-compatible", fill="blue")

    p.box(300, 36, 340, 382, "Hub: one process per machine\ntoolhub serve, or Hub() in your program", top=True)
    p.box(316, 88, 146, 46, "task API  /v1", fill="amber")
    p.box(316, 212, 146, 62, "MCP gateway\n/mcp, toolhub stdio", fill="amber")
    p.box(316, 308, 146, 46, "LLM proxy  /llm/v1", fill="amber")
    p.box(492, 88, 132, 186, "Tasks\na lease each\n\nfair queues\nlimits, cache\nretries\nsessions", fill="amber")
    p.box(492, 308, 132, 46, "builtin servers\nin this process", fill="green")
    p.box(316, 374, 308, 32, "/metrics  /readyz  /openapi.json", fill="amber")
    p.arrow((240, 67), (270, 67), (270, 104), (314, 104))
    p.arrow((240, 155), (270, 155), (270, 118), (314, 118))
    p.arrow((240, 243), (314, 243))
    p.arrow((240, 331), (314, 331))
    p.arrow((462, 111), (490, 111))
    p.arrow((462, 243), (490, 243))
    p.arrow((558, 274), (558, 306))

    p.text(690, 22, "What the hub starts", bold=True)
    p.box(690, 36, 290, 152, "Supervisor process\nends all below it when the hub dies", top=True)
    p.box(704, 88, 126, 86, "MCP servers\nover stdio,\na shim each", fill="green")
    p.box(840, 88, 126, 86, "spawn: fork\nforked from a\nwarm interpreter", fill="green")
    p.box(690, 204, 138, 66, "Sandboxes\nnamespaces,\nseccomp; or E2B", fill="green")
    p.box(842, 204, 138, 66, "Confined\nparsers, SQLite;\nChromium", fill="green")
    p.text(690, 298, "What it talks to", bold=True)
    p.box(690, 372, 290, 46, "Model servers\nvLLM, SGLang, Dynamo, llama.cpp", fill="blue")
    p.box(690, 308, 290, 46, "Remote MCP servers\nstreamable HTTP, SSE", fill="blue")
    p.arrow((624, 112), (688, 112))
    p.arrow((624, 237), (688, 237))
    p.arrow((624, 258), (664, 258), (664, 331), (688, 331))
    # The proxy's way to the model servers runs below the builtin servers.
    p.arrow((462, 331), (477, 331), (477, 364), (664, 364), (664, 395), (688, 395))
    return p


def lease() -> Picture:
    """How long a task lives."""
    p = Picture(900, 250, "A task ends by being closed, by its lease, or with the hub")
    left, right = 150, 860
    p.text(20, 44, "calls of the task", bold=True)
    for x, width in ((180, 60), (270, 110), (420, 40)):
        p.box(x, 24, width, 32, "call", fill="blue")
    p.text(20, 112, "lease", bold=True)
    p.line((left, 108), (right, 108), width=1)
    for x in (180, 240, 270, 380, 420, 460):
        p.line((x, 100), (x, 116), width=2)
    p.arrow((460, 84), (760, 84), both=True)
    p.text(610, 76, "task_lease_s without a sign of life", anchor="middle")
    p.line((760, 78), (760, 228), width=2)
    p.text(180, 136, "each call and each renewal restarts the lease; a running call holds it")
    p.text(20, 192, "its servers and\nsandboxes", bold=True)
    p.box(180, 172, 580, 44, "alive, with their state\nprocesses, sandboxes, browser tabs", fill="green")
    p.text(772, 190, "closed; nothing\nis left behind")
    return p


def share() -> Picture:
    """Who uses one session of a server."""
    p = Picture(900, 270, "share: task, share: hub and share: call")
    for column, (title, note) in enumerate(
        (
            ("share: task", "a process per task (default)\nstate stays inside the task"),
            ("share: hub", "one process for all tasks\nfor servers that remember nothing"),
            ("share: call", "a new process for every call\nnothing survives a call"),
        )
    ):
        x = 20 + column * 300
        p.text(x + 130, 24, title, bold=True, anchor="middle")
        for row, name in enumerate(("task A", "task B")):
            y = 44 + row * 84
            p.box(x, y, 90, 60, name, fill="blue")
            if column == 0:
                p.box(x + 160, y, 100, 60, f"server {'AB'[row]}", fill="green")
                p.arrow((x + 90, y + 30), (x + 158, y + 30))
            elif column == 1:
                p.arrow((x + 90, y + 30), (x + 158, 116 - 10 + row * 20))
            else:
                for call in range(2):
                    p.box(x + 160, y + call * 32, 100, 28, f"{'AB'[row]}{call + 1}", fill="green")
                    p.arrow((x + 90, y + 30), (x + 158, y + 14 + call * 32))
        if column == 1:
            p.box(x + 160, 86, 100, 60, "server", fill="green")
        p.text(x + 130, 220, note, anchor="middle")
    return p


def delivery() -> Picture:
    """What a failed call says about itself."""
    p = Picture(900, 330, "A failed call says whether it was sent")
    p.box(20, 30, 170, 56, "the call waits\nqueue, start", fill="blue")
    p.box(310, 30, 170, 56, "it was written\nto the server", fill="blue")
    p.box(600, 30, 170, 56, "the server answered", fill="green")
    p.arrow((190, 58), (308, 58))
    p.arrow((480, 58), (598, 58))
    p.text(784, 46, "one result;\nis_error is for\nthe model")
    p.box(20, 140, 170, 56, "fails: sent = no\nnothing happened", fill="amber")
    p.box(310, 140, 170, 56, "fails: sent = maybe\nit may have run", fill="red")
    p.arrow((105, 86), (105, 138))
    p.arrow((395, 86), (395, 138))
    p.box(20, 250, 170, 56, "safe to repeat\nOverloaded, StartError", fill="green")
    p.box(310, 250, 170, 56, "the tool is read-only\nor idempotent", fill="grey")
    p.box(600, 250, 170, 56, "toolhub repeats it\nwithin the deadline", fill="green")
    p.box(600, 140, 170, 56, "the caller decides\nSessionLost, timeouts", fill="amber")
    p.arrow((105, 196), (105, 248))
    p.arrow((395, 196), (395, 248))
    p.arrow((480, 290), (598, 290))
    p.text(520, 307, "yes", anchor="middle")
    p.arrow((480, 266), (540, 266), (540, 168), (598, 168))
    p.text(520, 259, "no", anchor="middle")
    return p


def program_admission() -> Picture:
    """Which programs have a place in the cache."""
    p = Picture(900, 260, "Programs in the KV cache, and programs that wait")
    p.text(20, 24, "The engine's KV cache", bold=True)
    p.box(20, 40, 70, 70, "shared\nprefix", fill="grey")
    for x, width, text, fill in (
        (90, 170, "program 1\nin a turn", "green"),
        (260, 140, "program 2\nits tools run", "blue"),
        (400, 120, "program 3\nin a turn", "green"),
        (520, 110, "program 4\ntools run", "blue"),
    ):
        p.box(x, 40, width, 70, text, fill=fill)
    p.line((20, 126), (700, 126), width=1)
    p.line((650, 32), (650, 134), width=2)
    p.line((700, 32), (700, 134), width=2)
    p.text(650, 24, "limit", anchor="middle")
    p.text(706, 130, "capacity")
    p.text(20, 176, "Outside the engine", bold=True)
    p.box(260, 190, 140, 50, "program 5\nnext turn waits", fill="amber")
    p.box(410, 190, 140, 50, "program 6\nnew, waits", fill="amber")
    p.arrow((330, 188), (330, 150), (600, 150), (600, 128))
    p.text(608, 152, "the oldest one that waits is next,")
    p.text(608, 169, "as soon as it fits")
    p.arrow((575, 112), (575, 215), (552, 215), dashed=True)
    p.text(590, 219, "on overflow the youngest is paused")
    return p


PICTURES = {
    "architecture": architecture,
    "lease": lease,
    "share": share,
    "delivery": delivery,
    "program_admission": program_admission,
}


def main() -> None:
    """Write the pictures; with `--check`, exit 1 if one is not up to date."""
    old = [name for name, draw in PICTURES.items() if not _is_written(name, str(draw()))]
    if "--check" in sys.argv[1:]:
        sys.exit(f"not up to date: {', '.join(old)}; run `make pictures`" if old else None)
    for name in old:
        (FOLDER / f"{name}.svg").write_text(str(PICTURES[name]()))


def _is_written(name: str, text: str) -> bool:
    path = FOLDER / f"{name}.svg"
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    main()
