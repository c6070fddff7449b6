"""Which answer of S3 means what: who tries again is decided here."""

from __future__ import annotations

import pytest
import urllib3
from botocore import exceptions as botocore
from botocore.parsers import ResponseParserError

from regen.store.s3_errors import FaultKind, fault_of, fault_of_answer, library_errors

ENDPOINT = "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("NoSuchKey", 404, FaultKind.MISSING),
        ("404", 404, FaultKind.MISSING),
        ("NoSuchBucket", 404, FaultKind.REFUSED),
        ("NoSuchUpload", 404, FaultKind.NO_UPLOAD),
        ("PreconditionFailed", 412, FaultKind.TAKEN),
        ("ConditionalRequestConflict", 409, FaultKind.CONFLICT),
        ("AccessDenied", 403, FaultKind.DENIED),
        ("AllAccessDisabled", 403, FaultKind.DENIED),
        ("ExpiredToken", 400, FaultKind.CREDENTIALS),
        ("InvalidAccessKeyId", 403, FaultKind.CREDENTIALS),
        ("RequestTimeTooSkewed", 403, FaultKind.AWAY),
        ("RequestTimeout", 400, FaultKind.AWAY),
        ("BadDigest", 400, FaultKind.AWAY),
        ("SlowDown", 503, FaultKind.AWAY),
        ("NobodyKnows", 599, FaultKind.AWAY),
        ("TooManyRequests", 429, FaultKind.AWAY),
        ("XMinioStorageFull", 507, FaultKind.AWAY),
        ("QuotaExceeded", 403, FaultKind.AWAY),
        ("NotImplemented", 501, FaultKind.REFUSED),
        ("MissingContentLength", 411, FaultKind.REFUSED),
        ("PermanentRedirect", 301, FaultKind.REFUSED),
        ("InvalidArgument", 400, FaultKind.REFUSED),
    ],
)
def test_an_answer_says_who_tries_again(code: str, status: int, kind: FaultKind) -> None:
    found = fault_of_answer(code, status)

    assert found.kind is kind
    assert str(status) in found.what


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (botocore.NoCredentialsError(), FaultKind.CREDENTIALS),
        (botocore.ProfileNotFound(profile="x"), FaultKind.CREDENTIALS),
        (botocore.CredentialRetrievalError(provider="p", error_msg="it printed a-secret"), FaultKind.CREDENTIALS),
        (botocore.UnauthorizedSSOTokenError(), FaultKind.CREDENTIALS),
        (botocore.EndpointConnectionError(endpoint_url=ENDPOINT), FaultKind.AWAY),
        (botocore.ReadTimeoutError(endpoint_url=ENDPOINT), FaultKind.AWAY),
        (botocore.ConnectTimeoutError(endpoint_url=ENDPOINT), FaultKind.AWAY),
        (botocore.ConnectionClosedError(endpoint_url=ENDPOINT), FaultKind.AWAY),
        (botocore.SSLError(endpoint_url=ENDPOINT, error="self-signed"), FaultKind.AWAY),
        (botocore.IncompleteReadError(actual_bytes=1, expected_bytes=2), FaultKind.CUT),
        (botocore.ResponseStreamingError(error="reset"), FaultKind.CUT),
        (botocore.FlexibleChecksumError(error_msg="other bytes"), FaultKind.CUT),
        (urllib3.exceptions.SSLError("bad record mac, in the middle of a body"), FaultKind.CUT),
        (ResponseParserError("a proxy's page is no XML"), FaultKind.CUT),
        (botocore.ParamValidationError(report="no bucket"), FaultKind.REFUSED),
    ],
)
def test_an_error_of_the_client_says_who_tries_again(error: Exception, kind: FaultKind) -> None:
    found = fault_of(error)

    assert isinstance(error, library_errors())
    assert found.kind is kind
    assert "a-secret" not in found.what
