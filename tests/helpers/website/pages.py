"""The pages of the website: one handler for each path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from website import documents, standins

if TYPE_CHECKING:
    from website.site import Site

Handler = Callable[["Site", Request], Awaitable[Response]]
HUGE_BYTES = 200 << 20
CHINESE = "黄河是中国第二长河,发源于青海省巴颜喀拉山脉,流经九个省区,最后注入渤海。"
JAPANESE = "富士山は日本で最も高い山であり、標高は三千七百七十六メートルである。"

ARTICLE = """\
<!doctype html>
<html><head><title>The  harbour
of Emden</title><style>p { color: red }</style></head>
<body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/news">News</a></li></ul></nav>
<article>
<h1>The harbour of Emden</h1>
<p>The harbour was opened in 1901 and has three piers. Its deepest berth has 11.5 metres of water at low tide, which is
enough for ships of up to 80,000 tonnes. See <a href="/pilots">the pilots</a> for rules.</p>
<p>In 2019 the harbour handled 1.3 million cars, more than any other place on the North Sea coast of the country, and
about four million tonnes of other goods, most of it forest products and parts of wind turbines.</p>
<table><tr><th>Pier</th><th>Depth</th></tr><tr><td>First</td><td>9.5</td></tr><tr><td>Third</td><td>11.5</td></tr></table>
<script>document.title = "tracked";</script>
</article>
<footer>Copyright</footer>
</body></html>
"""
SCRIPTED = """\
<!doctype html>
<html><head><title>App</title></head><body><div id="root"></div><noscript>Enable JavaScript.</noscript>
<script>document.getElementById("root").textContent = "The tide is high at 14:05.";</script></body></html>
"""
LISTING = "<html><head><title>Index</title></head><body><table>{}</table></body></html>".format(
    "".join(f"<tr><td><a href='/f{n}'>file{n}.txt</a></td><td>{n} kB</td></tr>" for n in range(40))
)


def html_of(text: str, charset: str) -> bytes:
    """A page in a character set, which its `meta` names."""
    paragraphs = f"<p>{text * 5}</p><p>{text * 6}</p>"
    page = (
        f'<html><head><meta charset="{charset}"><title>{text[:4]}</title></head><body><article>{paragraphs}</article>'
    )
    return f"{page}</body></html>".encode(charset)


def _fixed(content: bytes | str, content_type: str, **headers: str) -> Handler:
    """content_type: sent exactly as it is; empty: none is sent."""
    body = content.encode() if isinstance(content, str) else content

    async def handle(_site: Site, _request: Request) -> Response:
        response = Response(body, headers={name.replace("_", "-"): value for name, value in headers.items()})
        if content_type:
            response.headers["content-type"] = content_type
        return response

    return handle


async def _slow(site: Site, request: Request) -> Response:
    await site.until_released(request)
    return HTMLResponse(ARTICLE)


async def _status(_site: Site, request: Request) -> Response:
    code = int(request.path_params["code"])
    return HTMLResponse(f"<h1>Status {code}</h1>", status_code=code)


async def _busy(site: Site, request: Request) -> Response:
    """429 the first time it is asked for under that name; Retry-After: `?after=`."""
    key = str(request.url)
    site.visits[key] = site.visits.get(key, 0) + 1
    if site.visits[key] == 1:
        after = request.query_params.get("after", "0")
        return PlainTextResponse("too many", 429, headers={"retry-after": after})
    return HTMLResponse(ARTICLE)


async def _flaky(site: Site, request: Request) -> Response:
    """503 the first time."""
    key = str(request.url)
    site.visits[key] = site.visits.get(key, 0) + 1
    return HTMLResponse(ARTICLE) if site.visits[key] > 1 else PlainTextResponse("not now", 503)


async def _chain(_site: Site, request: Request) -> Response:
    left = int(request.path_params["left"])
    return RedirectResponse(f"/chain/{left - 1}" if left > 1 else "/article", status_code=302)


async def _loop(_site: Site, _request: Request) -> Response:
    return RedirectResponse("/loop")


async def _to(_site: Site, request: Request) -> Response:
    return RedirectResponse(request.query_params["url"])


async def _to_private(_site: Site, _request: Request) -> Response:
    return RedirectResponse("http://169.254.169.254/latest/meta-data/")


async def _to_loopback(site: Site, _request: Request) -> Response:
    return RedirectResponse(f"http://localhost:{site.authority.rpartition(':')[2]}/article")


async def _huge(site: Site, request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        piece = b"all work and no play " * 50_000
        while site.sent_bytes < HUGE_BYTES and not await request.is_disconnected():
            yield piece
            site.sent_bytes += len(piece)

    return StreamingResponse(pieces(), media_type="text/plain")


async def _long(_site: Site, request: Request) -> Response:
    size = int(request.query_params.get("mb", "20")) << 20
    return HTMLResponse(documents.long_html(size))


async def _echo(_site: Site, request: Request) -> Response:
    return JSONResponse(dict(request.headers))


async def _jina(site: Site, request: Request) -> Response:
    if request.headers.get("authorization") != f"Bearer {standins.JINA_KEY}":
        return JSONResponse({"data": None, "name": "AuthenticationFailedError", "code": 401}, status_code=401)
    target = site.seen[-1].target.removeprefix("/jina/")
    return await _scripted(site, request, site.jina.next(target), standins.jina_page(target))


async def _chat(site: Site, request: Request) -> Response:
    if request.headers.get("authorization") not in (None, f"Bearer {standins.CHAT_KEY}"):
        return JSONResponse({"error": {"message": "Incorrect API key provided"}}, status_code=401)
    return await _scripted(site, request, site.chat.next(await request.body()), standins.completion())


async def _scripted(site: Site, request: Request, answer: standins.Answer, late: Response) -> Response:
    if isinstance(answer, Response):
        return answer
    await site.until_released(request)
    return late


HANDLERS: dict[str, Handler] = {
    "/article": _fixed(ARTICLE, "text/html; charset=utf-8"),
    "/article.txt": _fixed(ARTICLE, "text/plain; charset=utf-8"),
    "/listing": _fixed(LISTING, "text/html"),
    "/notes.txt": _fixed("first line\nsecond line\n", "text/plain; charset=utf-8"),
    "/data.json": _fixed('{"tide": [1, 2, 3], "name": "Müller"}', "application/json"),
    "/code.py": _fixed("def tide():\n    return 14\n", "application/octet-stream"),
    "/report.pdf": _fixed(documents.pdf("Annual report", "The turnover was 17 million."), "application/pdf"),
    "/report": _fixed(documents.pdf("Annual report", "The turnover was 17 million."), "application/octet-stream"),
    "/broken.pdf": _fixed(b"%PDF-1.4\nthis is none", "application/pdf"),
    "/letter.docx": _fixed(documents.docx("Dear reader", "The pier is closed."), documents.DOCX_TYPE),
    "/script.html": _fixed(SCRIPTED, "text/html; charset=utf-8"),
    "/empty": _fixed(b"", "text/html"),
    "/blank.html": _fixed("<html><body><div></div></body></html>", "text/html"),
    "/one-line": _fixed("word " * 1_000_000, "text/plain"),
    "/image.png": _fixed(b"\x89PNG\r\n\x1a\n" + bytes(200), "image/png"),
    "/program.bin": _fixed(bytes(range(256)) * 20, "application/octet-stream"),
    "/bomb": _fixed(documents.gzip_bomb(), "text/plain", content_encoding="gzip"),
    "/charset/gb2312-as-latin-1": _fixed(html_of(CHINESE, "gb2312"), "text/html; charset=iso-8859-1"),
    "/charset/gb2312-by-meta": _fixed(html_of(CHINESE, "gb2312"), "text/html"),
    "/charset/utf-8-unsaid": _fixed((CHINESE * 5).encode(), "text/plain"),
    "/charset/utf-8-no-type": _fixed(html_of(CHINESE, "utf-8"), ""),
    "/charset/shift-jis": _fixed((JAPANESE * 5).encode("shift_jis"), "text/plain; charset=Shift_JIS"),
    "/charset/unknown": _fixed((CHINESE * 5).encode(), "text/plain; charset=klingon"),
    "/charset/latin-1": _fixed("Ein schöner Tag für Müller. ".encode("latin-1") * 10, "text/plain; charset=iso-8859-1"),
    "/slow": _slow,
    "/status/{code:int}": _status,
    "/busy": _busy,
    "/flaky": _flaky,
    "/chain/{left:int}": _chain,
    "/loop": _loop,
    "/to": _to,
    "/to-private": _to_private,
    "/to-loopback": _to_loopback,
    "/huge": _huge,
    "/long.html": _long,
    "/echo": _echo,
    "/jina/{target:path}": _jina,
    "/v1/chat/completions": _chat,
}
