"""What an error of S3 means, and who tries again. By class and code, never by text.

The messages that regen makes of them name place, code and what to do. They never repeat what the store has said: some
stores repeat keys there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    MISSING = "missing"  # there is no such object
    TAKEN = "taken"  # the condition of a write does not hold
    NO_UPLOAD = "no upload"  # this multipart upload has ended, or was swept
    CONFLICT = "conflict"  # another write is under way: again at once
    CUT = "cut"  # an answer ended too early: again at once
    DENIED = "denied"  # again a few times, then it is meant
    CREDENTIALS = "credentials"  # expired, or none: with new ones, or later
    AWAY = "away"  # later
    REFUSED = "refused"  # never


@dataclass(frozen=True, slots=True)
class Fault:
    """`what` was found, `advice` what to do about it."""

    kind: FaultKind
    what: str
    advice: str


_CREDENTIALS_ADVICE = (
    "nothing is lost: put valid ones where boto3 finds them (a credentials file that is rewritten is read again)"
)
_AWAY_ADVICE = "nothing that was committed is lost, and the same bytes may be tried again"
_NO_ANSWER_ADVICE = f"{_AWAY_ADVICE}; if it has never answered, look at `store.endpoint` and `store.addressing`"
_ALTERED_ADVICE = "the bytes were altered under way: another `store.checksum` may help, or look at the proxy between"
_CLOCK_ADVICE = "set this machine's clock"
_BUCKET_ADVICE = "make the bucket, or name another `output`; is this the right endpoint?"
_REGION_ADVICE = "the bucket lies elsewhere: set `store.region`"
_LENGTH_ADVICE = "this store takes no bodies in chunks: set `store.checksum: when_required`"
_ADDRESSING_ADVICE = "this store wants the other `store.addressing` (path or virtual), or another endpoint"
_UNKNOWN_ADVICE = "this store does not take it: try another `store.checksum` or `store.addressing`"

_BY_CODE: dict[str, tuple[FaultKind, str]] = {
    **dict.fromkeys(("NoSuchKey", "404", "NotFound"), (FaultKind.MISSING, _AWAY_ADVICE)),
    **dict.fromkeys(("PreconditionFailed", "412"), (FaultKind.TAKEN, "")),
    "NoSuchUpload": (FaultKind.NO_UPLOAD, _AWAY_ADVICE),
    **dict.fromkeys(("ConditionalRequestConflict", "OperationAborted"), (FaultKind.CONFLICT, _AWAY_ADVICE)),
    **dict.fromkeys(
        (
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidToken",
            "RequestExpired",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        ),
        (FaultKind.CREDENTIALS, _CREDENTIALS_ADVICE),
    ),
    "RequestTimeTooSkewed": (FaultKind.AWAY, _CLOCK_ADVICE),
    **dict.fromkeys(
        ("BadDigest", "IncompleteBody", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"),
        (FaultKind.AWAY, _ALTERED_ADVICE),
    ),
    **dict.fromkeys(
        ("RequestTimeout", "SlowDown", "Throttling", "RequestLimitExceeded", "InternalError", "ServiceUnavailable"),
        (FaultKind.AWAY, _AWAY_ADVICE),
    ),
    **dict.fromkeys(
        ("QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"),
        (FaultKind.AWAY, "the store is full: make room there; nothing that was committed is lost"),
    ),
    "NoSuchBucket": (FaultKind.REFUSED, _BUCKET_ADVICE),
    **dict.fromkeys(
        ("PermanentRedirect", "IllegalLocationConstraintException", "AuthorizationHeaderMalformed"),
        (FaultKind.REFUSED, _REGION_ADVICE),
    ),
    "MissingContentLength": (FaultKind.REFUSED, _LENGTH_ADVICE),
    "MethodNotAllowed": (FaultKind.REFUSED, _ADDRESSING_ADVICE),
}
_BY_STATUS: dict[int, tuple[FaultKind, str]] = {
    403: (FaultKind.DENIED, "give these credentials the right to do this there, or name another `output`"),
    404: (FaultKind.MISSING, _AWAY_ADVICE),
    408: (FaultKind.AWAY, _AWAY_ADVICE),
    409: (FaultKind.CONFLICT, _AWAY_ADVICE),
    411: (FaultKind.REFUSED, _LENGTH_ADVICE),
    412: (FaultKind.TAKEN, ""),
    429: (FaultKind.AWAY, _AWAY_ADVICE),
    501: (FaultKind.REFUSED, _UNKNOWN_ADVICE),
}


def fault_of_answer(code: str, status: int) -> Fault:
    """What an answer with an error says: the code in its body, else the HTTP status."""
    found = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if found is None:
        is_away = status >= 500
        found = (FaultKind.AWAY, _AWAY_ADVICE) if is_away else (FaultKind.REFUSED, _UNKNOWN_ADVICE)
    return Fault(found[0], f"{code} (HTTP {status})" if code != str(status) else f"HTTP {status}", found[1])


def fault_of(error: Exception) -> Fault:
    """What an error that botocore has raised says."""
    from botocore import exceptions as botocore

    if isinstance(error, botocore.ClientError):
        answer = error.response
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(answer.get("Error", {}).get("Code", status))
        if error.operation_name == "HeadObject" and code in ("400", "403"):
            # There is no body that could name the reason. With other keys it went well before.
            return Fault(FaultKind.CREDENTIALS, f"HTTP {status}, as with expired credentials", _CREDENTIALS_ADVICE)
        return fault_of_answer(code, status)
    name = type(error).__name__
    if isinstance(error, _credential_errors()):
        return Fault(FaultKind.CREDENTIALS, f"no valid credentials ({name})", _CREDENTIALS_ADVICE)
    if isinstance(error, botocore.IncompleteReadError | botocore.ResponseStreamingError):
        return Fault(FaultKind.CUT, "the answer was cut off", _AWAY_ADVICE)
    if isinstance(error, botocore.FlexibleChecksumError | botocore.ChecksumError):
        return Fault(FaultKind.CUT, f"its checksum does not match ({name})", _ALTERED_ADVICE)
    if isinstance(error, botocore.SSLError):
        return Fault(FaultKind.AWAY, "no secure connection", "http or https? AWS_CA_BUNDLE names other authorities")
    if isinstance(error, botocore.HTTPClientError | botocore.ConnectionError):
        return Fault(FaultKind.AWAY, f"no answer ({name})", _NO_ANSWER_ADVICE)
    if isinstance(error, _unwrapped_errors()):
        return Fault(FaultKind.CUT, f"the answer was broken off, or is none of S3's ({name})", _AWAY_ADVICE)
    return Fault(FaultKind.REFUSED, f"{name}: {error}", "see the settings in `store` and the AWS configuration")


def library_errors() -> tuple[type[Exception], ...]:
    """All that boto3 raises for what a store or the way to it does: `fault_of` knows each."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError, *_unwrapped_errors()


def _unwrapped_errors() -> tuple[type[Exception], ...]:
    """What botocore lets through: of TLS in the middle of a body, and of an answer that is no XML (a proxy's page)."""
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return HTTPError, ResponseParserError


def _credential_errors() -> tuple[type[Exception], ...]:
    from botocore import exceptions as botocore

    return (
        botocore.NoCredentialsError,
        botocore.PartialCredentialsError,
        botocore.CredentialRetrievalError,
        botocore.NoAuthTokenError,
        botocore.TokenRetrievalError,
        botocore.MetadataRetrievalError,
        botocore.RefreshWithMFAUnsupportedError,
        botocore.ProfileNotFound,
        botocore.SSOError,
        botocore.LoginError,
    )
