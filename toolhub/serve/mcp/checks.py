"""What revision 2026-07-28 asks a server to refuse: unknown methods, bad params, headers that say something else."""

from __future__ import annotations

from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types import METHOD_NOT_FOUND
from mcp_types import methods as specified
from pydantic import ValidationError

from toolhub.channel.base import Refused
from toolhub.model import Json
from toolhub.serve.mcp.client import INVALID_PARAMS, ClientRequest


def check_modern(method: str, version: str, params: Json | None) -> None:
    """Refuse what revision 2026-07-28 has removed, and params that it does not allow. Raises Refused."""
    if method not in specified.SPEC_CLIENT_METHODS:
        return
    try:
        specified.validate_client_request(method, version, params)
    except KeyError:
        raise Refused(METHOD_NOT_FOUND, "Method not found", method) from None
    except ValidationError:
        raise Refused(INVALID_PARAMS, "Invalid request parameters", "") from None


async def check_headers(server: str, tool: str, request: ClientRequest) -> None:
    """Refuse a tool call over HTTP whose headers and arguments differ. Raises Refused.

    A client learns from the list of tools which arguments it must repeat. If nobody has listed them yet, only a call
    that repeats some makes the hub ask the server.
    """
    arguments = (request.params or {}).get("arguments")
    if request.era != "modern" or request.headers is None or not (arguments or request.headers):
        return
    known = await request.task.tool_with_headers(server, tool, request.profile, ask=bool(request.headers))
    if known is not None:
        given = arguments if isinstance(arguments, dict) else {}
        rejection = validate_mcp_param_headers(known.input_schema, given, request.headers)
        if rejection is not None:
            raise Refused(rejection.code, rejection.message, rejection.data)
