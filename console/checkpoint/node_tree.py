"""The files of one commit with sizes and hashes, from the hub's tree API; runs on the node, stdlib only, Python 3.6.

ASK: {"endpoint", "repo", "revision", "token", "configs": [path]}. Answers {"files": [{"path", "size", "sha256", "blob"}],
"configs": {path: text}} or {"error": {"status", "text", "retry_after"}}. `sha256` is set for LFS files, `blob` is git's
sha1 of the others. A config that is too long, or not the one that the tree names, is left out.
"""

import hashlib
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Optional

ASK: Dict[str, Any] = globals().get("ASK", {})
TIMEOUT = 30
LONGEST_CONFIG = 1 << 20
TRIES = 4
LONGEST_WAIT = 20.0
"""Seconds; a hub that asks for more is told of at once."""
PASSING = (408, 429, 500, 502, 503, 504)


class SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and never hands the token to another host."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        fresh = super().redirect_request(req, fp, code, msg, headers, newurl)
        if fresh is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            fresh.remove_header("Authorization")
        return fresh


def tree(ask: Dict[str, Any]) -> Dict[str, Any]:
    """All pages of the tree, or the error that the hub answered with."""
    path = "/api/models/%s/tree/%s?recursive=true" % (
        urllib.parse.quote(ask["repo"]),
        urllib.parse.quote(ask["revision"], safe=""),
    )
    url: Optional[str] = ask["endpoint"].rstrip("/") + path
    files: List[Dict[str, Any]] = []
    while url:
        try:
            with patiently(ask, url) as answer:
                rows = json.loads(answer.read().decode())
                link = answer.headers.get("Link", "")
        except urllib.error.HTTPError as error:
            text = error.headers.get("X-Error-Message") or error.reason or ""
            code = error.headers.get("X-Error-Code") or ""
            wait = error.headers.get("Retry-After") or limit_seconds(error.headers.get("RateLimit", ""))
            return {"error": {"status": error.code, "text": ("%s %s" % (code, text)).strip(), "retry_after": wait}}
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return {"error": {"status": None, "text": str(reason), "retry_after": None}}
        files += [entry(row) for row in rows if row.get("type") == "file"]
        match = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', link)
        url = urllib.parse.urljoin(url, match.group(1)) if match else None
    return {"files": files, "configs": configs(ask, files)}


def get(ask: Dict[str, Any], url: str) -> Any:
    """The answer to a GET, with the token where one is given."""
    request = urllib.request.Request(url, headers={"User-Agent": "relaunch", "Accept": "application/json"})
    if ask.get("token"):
        request.add_unredirected_header("Authorization", "Bearer " + ask["token"])
    return urllib.request.build_opener(SameHost).open(request, timeout=TIMEOUT)


def patiently(ask: Dict[str, Any], url: str) -> Any:
    """A GET that outlasts a short trouble of the hub's own; the last answer counts."""
    for attempt in range(TRIES):
        try:
            return get(ask, url)
        except urllib.error.HTTPError as error:
            wait = error.headers.get("Retry-After") or limit_seconds(error.headers.get("RateLimit", "")) or ""
            seconds = float(wait) if re.match(r"\d+(\.\d+)?$", wait) else 0.5 * 2**attempt
            if error.code not in PASSING or attempt == TRIES - 1 or seconds > LONGEST_WAIT:
                raise
        time.sleep(seconds)  # what the hub asks for; it sends no sign when its trouble is over
    raise ValueError("no try was made")


def configs(ask: Dict[str, Any], files: List[Dict[str, Any]]) -> Dict[str, str]:
    """The text of the wanted JSON files, each exactly as the tree names it; the download itself reports trouble."""
    found = {}
    for row in files:
        if row["path"] not in ask.get("configs", ()) or not row["blob"] or row["size"] > LONGEST_CONFIG:
            continue
        place = "/".join(urllib.parse.quote(part) for part in (ask["repo"], "resolve", ask["revision"], row["path"]))
        try:
            with get(ask, ask["endpoint"].rstrip("/") + "/" + place) as answer:
                data = answer.read(LONGEST_CONFIG + 1)
            name = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if name == row["blob"]:
                found[row["path"]] = data.decode("utf-8")
        except (OSError, ValueError):
            continue
    return found


def limit_seconds(header: str) -> Optional[str]:
    """The seconds to wait in a header like `"api";r=0;t=42`."""
    match = re.search(r"\bt=(\d+)", header)
    return match.group(1) if match else None


def entry(row: Dict[str, Any]) -> Dict[str, Any]:
    """One file of the tree; an LFS file's size and hash are those of its content, not of its pointer."""
    lfs = row.get("lfs") or {}
    return {
        "path": row["path"],
        "size": int(lfs.get("size") or row.get("size") or 0),
        "sha256": lfs.get("oid") or lfs.get("sha256"),
        "blob": None if lfs else row.get("oid"),
    }


if __name__ == "__main__":
    print(json.dumps(tree(ASK)))
