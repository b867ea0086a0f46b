"""Errors in OpenAI's shape."""

from typing import Any

from starlette.responses import JSONResponse

_TYPES = {
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
}


def error_response(
    status: int, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(error_body(status, message), status_code=status, headers=headers)


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    kind = _TYPES.get(status, "BadRequestError" if status < 500 else "ServiceUnavailableError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
