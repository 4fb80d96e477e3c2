"""Small documents of real formats, made by hand."""

from __future__ import annotations

import functools
import gzip
import io
import zipfile

DOCX_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


def pdf(*lines: str) -> bytes:
    """One page with these lines of ASCII text."""
    shown = " ".join(f"({line}) Tj 0 -20 Td" for line in lines)
    stream = f"BT /F1 12 Tf 72 720 Td {shown} ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % place for place in places)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))
    return out.getvalue()


def docx(*paragraphs: str) -> bytes:
    """A Word file; the first paragraph is a heading."""
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    heading = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
    body = "".join(
        f"<w:p>{'' if number else heading}<w:r><w:t>{text}</w:t></w:r></w:p>" for number, text in enumerate(paragraphs)
    )
    style = '<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style>'
    package = "http://schemas.openxmlformats.org/package/2006"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    kinds = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{kinds}.document.main+xml"/>'
        f'<Override PartName="/word/styles.xml" ContentType="{kinds}.styles+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{office}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{office}/styles" Target="styles.xml"/></Relationships>',
        "word/styles.xml": f'<w:styles xmlns:w="{word}">{style}</w:styles>',
        "word/document.xml": f'<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>',
    }
    return zipped({name: f'<?xml version="1.0"?>{text}'.encode() for name, text in parts.items()})


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def zip_bomb(size_bytes: int) -> bytes:
    """An archive of one text file of that size."""
    out = io.BytesIO()
    piece = b"0" * (1 << 20)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("huge.txt", "w", force_zip64=True) as stream:
            for _ in range(size_bytes // len(piece)):
                stream.write(piece)
    return out.getvalue()


def hostile_pdf() -> bytes:
    """A PDF whose one stream unfolds to more than any machine has: filters upon filters."""
    import zlib

    layer = b"0" * (64 << 20)
    for _ in range(2):
        layer = zlib.compress(layer, 9)
    stream = zlib.compress(layer * 200, 9)
    head = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
    head += b"2 0 obj\n<< /Type /Pages /Kids [3 0 R] /Count 1 >>\nendobj\n"
    head += (
        b"3 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents [" + b"4 0 R " * 5000 + b"] >>\nendobj\n"
    )
    filters = b"[/FlateDecode /FlateDecode /FlateDecode]"
    head += b"4 0 obj\n<< /Length %d /Filter %s >>\nstream\n%s\nendstream\nendobj\n" % (len(stream), filters, stream)
    return head + b"trailer\n<< /Root 1 0 R >>\n%%EOF\n"


@functools.cache
def gzip_bomb() -> bytes:
    """Some 200 kB that unfold to 200 MB of one word."""
    return gzip.compress(b"bomb " * (4 << 20)) * 10


def long_html(size_bytes: int) -> bytes:
    """An article of about that size, no paragraph like another."""
    words = "The committee heard the report on the harbour and asked how deep the water is at the third pier. " * 4
    one = len(f"<p>0000000 {words}</p>\n")
    paragraphs = "".join(f"<p>{number:07d} {words}</p>\n" for number in range(max(1, size_bytes // one)))
    return f"<html><head><title>Minutes</title></head><body><article>{paragraphs}</article></body></html>".encode()
