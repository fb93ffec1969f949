"""AWS's signature, version 4, by its page "Signature Version 4 signing process": who made a request?"""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import parse_qsl, quote

from support.recorder import Heard

FORM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8}/[^/]+/[^/]+/aws4_request), "
    r"SignedHeaders=([^,]+), Signature=(\w+)"
)


def signer_of(heard: Heard, secrets: dict[str, str]) -> str | None:
    """Give the key by which a request was signed; None where the signature is of something else."""
    found = FORM.fullmatch(heard.headers.get("authorization", ""))
    if found is None or found[1] not in secrets:
        return None
    key, scope, signed, signature = found.groups()
    method, _, target = heard.line.partition(" ")
    path, _, query = target.partition("?")
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, True)
    )
    names = signed.split(";")
    canonical = [
        method,
        quote(path, safe="/-_.~"),
        "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{' '.join(heard.headers[name].split())}" for name in names),
        "",
        signed,
        hashlib.sha256(heard.body).hexdigest(),
    ]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", heard.headers["x-amz-date"], scope, digest])
    made = f"AWS4{secrets[key]}".encode()
    for part in scope.split("/"):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    same = hmac.compare_digest(hmac.new(made, to_sign.encode(), hashlib.sha256).hexdigest(), signature)
    return key if same and {"host", "x-amz-date"} <= set(names) else None
