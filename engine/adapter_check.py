"""`python -m engine.adapter_check DIR --base PATH`: all that an upload is checked for, offline.

What `tenfold adapter check` becomes, for whoever trains adapters: no server is asked. Structure,
numbers and copies of the base are checked as an upload's are; then the adapter is run beside the
base on the golden prompts, and every module of it is compared with a merge made anew, where a
server samples a few. Invariant: the exit status is 0 for an adapter that would be served, 1 for
one that would be refused, 2 where the base cannot be read.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AdapterRef, EngineError, Evidence, TokenOutput
from engine.model_runner import ModelRunner
from engine.module_check import check_modules, checkable_modules
from engine.transport.certificates import MAX_MODULE_ERROR, Figures
from engine.transport.golden import golden_prompts, largest_change, trial_request
from lora.base_copies import check_against_base
from lora.base_files import BaseFiles
from lora.base_spec import BaseSpec, UnsupportedBaseError
from lora.digest import adapter_digest, hash_file
from lora.findings import Finding, strictly
from lora.manifest import AdapterManifest, ManifestError, read_manifest
from lora.store import ADAPTER_FILES, CONFIG_FILE, WEIGHTS_FILE, LocalAdapterStore
from lora.values import check_values
from lora.variants import VariantError
from lora.weights import load_weights

OWNER = "ten_check"
PATIENCE_S = 600.0

REFUSED, NO_BASE = 1, 2  # exit status


def check(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="DIR")],
    base: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of the base model.")
    ],
    model_id: Annotated[
        str | None, typer.Option(help="The base's name where it is served.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Warnings refuse it too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    found: Annotated[str, typer.Option(hidden=True, help="Findings of another check.")] = "[]",
) -> None:
    """Check a PEFT folder as an upload would be, and every module of it. Needs no server."""
    others = msgspec.json.decode(found, type=list[Finding])
    try:
        report = check_adapter(folder, base, model_id, others, strict=strict)
    except UnsupportedBaseError as error:
        typer.echo(f"{base}: {error}", err=True)
        raise typer.Exit(NO_BASE) from None
    typer.echo(json.dumps(report, indent=2) if as_json else as_text(report))
    if report["status"] == "rejected":
        raise typer.Exit(REFUSED)


def check_adapter(
    folder: Path,
    base_folder: Path,
    model_id: str | None = None,
    found: Sequence[Finding] = (),
    *,
    strict: bool = False,
) -> dict[str, Any]:
    """`{"status", "digest", "checks", "figures"}`, as a version's report has them.

    found: in the chat template, which is not looked at here. strict: a warning refuses as an error
    does.

    `figures` is null where the adapter is refused, and where the base's folder has no weights.
    Raises UnsupportedBaseError.
    """
    started_at = time.monotonic()
    base = BaseSpec.from_folder(base_folder, model_id)
    paths = [folder / CONFIG_FILE, folder / WEIGHTS_FILE]
    findings = [
        Finding(code, "error", f"There is no {path.name}.", file=path.name)
        for path, code in zip(paths, ("config_missing", "adapter_empty"), strict=True)
        if not path.is_file()
    ]
    digest, figures = None, None
    if not findings:
        digest = adapter_digest(map(hash_file, files_of(folder).values()))
        findings, figures = _check(folder, base_folder, base, digest)
    findings += found
    if strict:
        findings = [*strictly(findings)]
    is_refused = any(finding.severity == "error" for finding in findings)
    return {
        "status": "rejected" if is_refused else "accepted",
        "digest": digest,
        "duration_ms": round(1e3 * (time.monotonic() - started_at)),
        "checks": [_shown(finding) for finding in findings],
        "figures": None if figures is None else msgspec.to_builtins(figures),
    }


def _check(
    folder: Path, base_folder: Path, base: BaseSpec, digest: str
) -> tuple[list[Finding], Figures | None]:
    weights = folder / WEIGHTS_FILE
    try:
        manifest = read_manifest((folder / CONFIG_FILE).read_bytes(), weights, base)
    except ManifestError as error:
        return list(error.findings), None
    findings = [*manifest.warnings, *check_values(weights, manifest)]
    try:
        files = BaseFiles.from_folder(base_folder, base)
    except UnsupportedBaseError:  # a folder without weights tells shapes only
        return findings, None
    findings += check_against_base(weights, manifest, files)
    if any(finding.severity == "error" for finding in findings):
        return findings, None
    found, figures = _try_out(folder, base_folder, base, digest, manifest)
    codes = {finding.code for finding in findings}
    return [*findings, *(each for each in found if each.code not in codes)], figures


def _try_out(
    folder: Path, base_folder: Path, base: BaseSpec, digest: str, manifest: AdapterManifest
) -> tuple[list[Finding], Figures | None]:
    runner = ModelRunner(EngineConfig(), base, base_folder)
    file = folder / WEIGHTS_FILE
    try:
        loaded = load_weights(manifest, file, base, runner.base_tensors)
    except VariantError as error:
        return [Finding("adapter_load_failed", "error", str(error))], None
    modules = check_modules(checkable_modules(manifest), file, loaded, base, runner.base_tensors)
    outcomes = _run(runner, folder, base, digest)
    for outcome in outcomes:
        if isinstance(outcome, EngineError):
            code = "canary_nonfinite" if outcome.code == "nonfinite_logits" else outcome.code
            return [Finding(code, "error", outcome.message)], None
    told = [outcome for outcome in outcomes if isinstance(outcome, Evidence)]
    middle = len(told) // 2
    changes = (largest_change(*pair) for pair in zip(told[:middle], told[middle:], strict=True))
    figures = Figures(golden=tuple(changes), modules=modules)
    findings = [
        Finding("adapter_inexact", "error", f"{each.module} is not served as it was trained.")
        for each in modules
        if not each.error <= MAX_MODULE_ERROR
    ]
    if figures.is_without_effect:
        message = "With it the model gives the base's own scores on every golden prompt."
        findings.append(Finding("no_effect", "warning", message))
    return findings, figures


def _run(
    runner: ModelRunner, folder: Path, base: BaseSpec, digest: str
) -> list[Evidence | EngineError]:
    """What each golden prompt came to: first with the base, then with the adapter."""
    prompts = golden_prompts(base)
    with tempfile.TemporaryDirectory() as scratch:
        store = LocalAdapterStore(Path(scratch))
        locator = store.put(OWNER, digest, files_of(folder))
        ref = AdapterRef(tenant_id=OWNER, digest=digest, locator=locator)
        loader = AdapterLoader(store, base, runner.base_tensors, num_threads=1)
        core = EngineCore(runner.config, base, runner, loader, "check")
        for place, (adapter, prompt) in enumerate(
            (adapter, prompt) for adapter in (None, ref) for prompt in prompts
        ):
            core.add(trial_request(str(place), "check", prompt, adapter))
        ended = _finish(core)
        loader.close()
    return [_outcome(ended[str(place)]) for place in range(2 * len(prompts))]


def files_of(folder: Path) -> dict[str, Path]:
    """What of a folder is uploaded, by name."""
    return {path.name: path for path in folder.iterdir() if path.name in ADAPTER_FILES}


def _finish(core: EngineCore) -> dict[str, TokenOutput]:
    """Step until all have ended; each request's last output."""
    ended: dict[str, TokenOutput] = {}
    deadline = time.monotonic() + PATIENCE_S
    while core.has_work and time.monotonic() < deadline:
        for batch in core.step().values():
            ended |= {output.request_id: output for output in batch.outputs}
        if not core.has_runnable:
            time.sleep(0.001)  # the adapter is being read
    return ended


def _outcome(output: TokenOutput) -> Evidence | EngineError:
    found = output.error or output.evidence
    assert found is not None, "asked for evidence"
    return found


def _shown(finding: Finding) -> dict[str, Any]:
    fields = asdict(finding)
    return {"rule": fields.pop("code")} | {k: v for k, v in fields.items() if v is not None}


def as_text(report: dict[str, Any]) -> str:
    """The report in lines, the verdict last."""
    lines = [
        f"{found['severity']} {found['rule']}: {found['message']}" for found in report["checks"]
    ]
    if figures := report["figures"]:
        worst = max((each["error"] for each in figures["modules"]), default=0.0)
        largest = max((each["effect"] for each in figures["modules"]), default=0.0)
        lines.append(
            f"{len(figures['modules'])} modules: largest error {worst:.1e}, "
            f"largest change of a weight {largest:.1%}; "
            f"largest change of a golden logit {max(figures['golden']):.3g}"
        )
    return "\n".join([*lines, f"{report['status']} {report['digest'] or ''}".rstrip()])


def main() -> None:
    typer.run(check)


if __name__ == "__main__":
    main()
