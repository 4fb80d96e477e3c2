"""Signatures of Tencent Cloud: the examples of its documentation."""

from __future__ import annotations

from toolhub_servers.search.backends.tencent_signing import Credentials, signed_headers

BODY = rb'{"Limit": 1, "Filters": [{"Values": ["\u672a\u547d\u540d"], "Name": "instance-name"}]}'


def test_a_request_is_signed_as_in_the_documentation() -> None:
    """https://www.tencentcloud.com/document/api/614/42761, whose key is 32 asterisks."""
    headers = signed_headers(
        Credentials("AKID********************************", "*" * 32),
        host="cvm.tencentcloudapi.com",
        service="cvm",
        action="DescribeInstances",
        version="2017-03-12",
        body=BODY,
        timestamp=1551113065,
    )
    assert headers["Authorization"] == (
        "TC3-HMAC-SHA256 Credential=AKID********************************/2019-02-25/cvm/tc3_request, "
        "SignedHeaders=content-type;host;x-tc-action, "
        "Signature=10b1a37a7301a02ca19a647ad722d5e43b4b3cff309d421d85b46093f6ab6c4f"
    )
    assert headers["X-TC-Timestamp"] == "1551113065"
    assert headers["X-TC-Action"] == "DescribeInstances"
    assert headers["X-TC-Version"] == "2017-03-12"


def test_the_day_of_a_signature_is_that_of_utc() -> None:
    keys = Credentials("id", "key")
    last, first = (
        signed_headers(keys, host="h", service="s", action="a", version="v", body=b"", timestamp=at)["Authorization"]
        for at in (1551139199, 1551139200)
    )
    assert "/2019-02-25/s/" in last and "/2019-02-26/s/" in first


def test_keys_are_not_shown() -> None:
    assert "s3cret" not in repr(Credentials("id", "s3cret"))
