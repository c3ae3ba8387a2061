"""Text of the code of a run."""

from __future__ import annotations

from outlast.code.record import CodeRecord


def code_text(code: CodeRecord) -> str:
    """Describe the code briefly."""
    if code.kind == "none":
        return "no code"
    if code.kind == "git":
        return f"code {code.url} {(code.commit or code.ref)[:12]}"
    commit = f", commit {code.commit[:12]}" + (" with changes" if code.dirty else "") if code.commit else ""
    return f"code {code.sha256[:12]}{commit}"
