"""Which modules a configuration adapts, at which rank and alpha: PEFT's matching, module by module.

Knows nothing of tensors. Names are those of the model that was trained (`prefix` + `layers.N.` +
module), because that is what PEFT matched. Invariant: for every pattern it lets through, the
answer is PEFT's.

Source: PEFT's check_target_module_exists, get_pattern_key and inject_adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from lora.base_spec import BaseSpec
from lora.findings import Findings
from lora.limits import ManifestLimits
from lora.patterns import Pattern, PatternError, check_pattern, compile_pattern
from lora.peft_config import ALL_LINEAR, PeftConfig
from lora.sites import (
    EMBED,
    EMBED_TOKENS,
    FUSED,
    HEAD,
    LM_HEAD,
    NO_LAYER,
    ModuleKey,
)
from lora.tying import Tie
from lora.unadaptable import unadaptable_paths

Value = TypeVar("Value", int, int | float)

# PEFT's MIN_TARGET_MODULES_FOR_OPTIMIZATION: of so many names it makes fewer, shorter ones.
_MIN_CONDENSED = 20
_FIRST_NUMBER = r".*?\.[^.]*\.(?P<idx>\d+)\."


@dataclass(frozen=True, slots=True)
class Targets:
    """What the configuration says of each of the base's modules."""

    configured: frozenset[ModuleKey]
    ranks: dict[ModuleKey, int]
    alphas: dict[ModuleKey, int | float]


def read_targets(
    config: PeftConfig,
    base: BaseSpec,
    prefix: str,
    fused: Collection[str],
    tie: Tie,
    limits: ManifestLimits,
    findings: Findings,
) -> Targets | None:
    """Evaluate the configuration's patterns on the modules of the model that was trained.

    `fused`: the projections that it had in place of their parts. None where a pattern is refused.
    """
    parts = {module for name in fused for module in FUSED[name].modules}
    modules = [module for module in (*base.linear_modules(), *sorted(fused)) if module not in parts]
    paths = {
        f"{prefix}layers.{layer}.{module}": (layer, module)
        for layer in range(base.num_layers)
        for module in modules
    }
    paths |= {f"{prefix}embed_tokens": EMBED_TOKENS, "lm_head": LM_HEAD}
    unserved = unadaptable_paths(base, prefix, fused)
    reader = _TargetReader(config, prefix, paths, unserved, limits, findings)
    configured = reader.configured(tie)
    ranks = reader.values("rank_pattern", config.rank_pattern, config.r)
    alphas = reader.values("alpha_pattern", config.alpha_pattern, config.lora_alpha)
    return None if findings.has_errors else Targets(configured, ranks, alphas)


class _TargetReader:
    def __init__(
        self,
        config: PeftConfig,
        prefix: str,
        paths: dict[str, ModuleKey],
        unserved: list[str],
        limits: ManifestLimits,
        findings: Findings,
    ) -> None:
        self._config = config
        self._embedding = f"{prefix}{EMBED}"
        self._paths = paths
        self._unserved = unserved
        self._limits = limits
        self._findings = findings

    def configured(self, tie: Tie) -> frozenset[ModuleKey]:
        """The modules that the configuration targets."""
        target_modules = self._config.target_modules
        if isinstance(target_modules, str):
            chosen = self._chosen_by_string(target_modules)
        else:
            if tie is Tie.MATRICES:
                named = dict.fromkeys((*target_modules, self._embedding))
                target_modules = tuple(name for name in named if name != HEAD)
            chosen = self._in_layers(self._chosen_by_list(target_modules), target_modules)
        if tie is Tie.MATRICES:
            chosen.add(self._embedding)
        chosen -= self._excluded() | self._saved_whole(tie)
        self._refuse_unserved(sorted(chosen.intersection(self._unserved)))
        chosen.intersection_update(self._paths)
        if tie is not Tie.NOTHING:
            self._refuse_half_tied(tie, chosen)
        if tie is Tie.MATRICES:
            chosen.add(HEAD)
        configured = frozenset(self._paths[path] for path in chosen)
        if not configured and not self._findings.has_errors:
            self._findings.refuse(
                "target_unknown", "the configuration targets nothing", param="target_modules"
            )
        return configured

    def values(
        self, param: str, patterns: Iterable[tuple[str, Value]], default: Value
    ) -> dict[ModuleKey, Value]:
        """Each module's value: that of the first pattern that matches, else the default."""
        compiled = [
            (pattern, value)
            for key, value in patterns
            if (pattern := self._compile(r"(.*\.)?({})$", key, param)) is not None
        ]
        return {
            key: next((value for pattern, value in compiled if pattern.match(path)), default)
            for path, key in self._paths.items()
        }

    def _excluded(self) -> set[str]:
        exclude = self._config.exclude_modules
        if exclude is None:
            return set()
        if isinstance(exclude, str):
            return self._matching(exclude, "exclude_modules", self._names)
        return _named(self._names, exclude)

    def _saved_whole(self, tie: Tie) -> set[str]:
        """What `modules_to_save` names, which PEFT then does not adapt; but of a tied pair it takes
        the embedding alone for saved, whichever is named."""
        saved = set(self._config.whole.modules_to_save)
        if tie is Tie.WEIGHT:
            saved = {*saved, self._embedding} - {HEAD}
        names = {tuple(name.split(".")) for name in saved}
        return {path for path in self._names if any(map(_contains(path), names))}

    def _refuse_half_tied(self, tie: Tie, chosen: set[str]) -> None:
        """PEFT fails where the head is adapted beside a tied weight, and where the embedding that
        its matrices would be tied to is not adapted."""
        if (tie is Tie.WEIGHT and HEAD in chosen) or (
            tie is Tie.MATRICES and self._embedding not in chosen
        ):
            self._findings.refuse(
                "target_unsupported",
                "the head cannot be tied to an embedding that is trained otherwise",
                param="ensure_weight_tying",
            )

    def _chosen_by_string(self, target_modules: str) -> set[str]:
        if target_modules.lower() == ALL_LINEAR:
            return {path for path, (layer, _) in self._paths.items() if layer != NO_LAYER}
        # NOTE: for a tied base PEFT also asks about the bare name of the embedding.
        return self._matching(target_modules, "target_modules", [*self._names, EMBED])

    def _chosen_by_list(self, target_modules: tuple[str, ...]) -> set[str]:
        known = {suffix for path in self._paths for suffix in _suffixes(path)}
        unserved = {suffix for path in self._unserved for suffix in _suffixes(path)}
        missing = [name for name in target_modules if name not in known]
        self._refuse_unserved([name for name in missing if name in unserved])
        self._findings.refuse_all(
            "target_unknown",
            [name for name in missing if name not in unserved],
            "targets that name no module of the base that can be adapted",
        )
        return _named(self._paths, target_modules)

    def _refuse_unserved(self, names: list[str]) -> None:
        self._findings.refuse_all("target_unsupported", names, "targets that are not served")

    def _in_layers(self, paths: set[str], target_modules: tuple[str, ...]) -> set[str]:
        """Keep what `layers_to_transform` allows, by the number that PEFT finds in each path."""
        layers = self._config.layers_to_transform
        if layers is None:
            return paths
        num_layers = 1 + max(layer for layer, _ in self._paths.values())
        beyond = [str(layer) for layer in layers if not 0 <= layer < num_layers]
        self._findings.refuse_all(
            "layer_out_of_range", beyond, f"layers_to_transform beyond the base's {num_layers}"
        )
        patterns = [
            self._compile(r"(?:^|.*?\.){}\.(?P<idx>\d+)\.", key, "layers_pattern")
            for key in self._config.layers_pattern
        ] or [compile_pattern(_FIRST_NUMBER)]
        # NOTE: PEFT does not look at the layer of a module that is named by its whole path.
        whole = paths.intersection(target_modules)
        if len(target_modules) >= _MIN_CONDENSED:
            self._findings.refuse_all(
                "target_unsupported",
                sorted(path for path in whole if "." in path),
                f"whole paths in a list of {_MIN_CONDENSED} names or more, beside "
                "layers_to_transform: PEFT shortens such a list, and then asks for their layers",
            )
        return {
            path
            for path in paths
            if path in whole or _layer_number(path, [each for each in patterns if each]) in layers
        }

    @property
    def _names(self) -> list[str]:
        return [*self._paths, *self._unserved]

    def _matching(self, regex: str, param: str, names: Iterable[str]) -> set[str]:
        names = list(names)
        try:
            checked = check_pattern(regex, self._limits.max_regex_chars, names)
            pattern = compile_pattern(checked)
        except PatternError as error:
            self._refuse_pattern(param, regex, error)
            return set()
        return {name for name in names if pattern.fullmatch(name)}

    def _compile(self, template: str, key: str, param: str) -> Pattern | None:
        """Compile a tenant's `key` where the template says `{}`."""
        try:
            checked = check_pattern(key, self._limits.max_pattern_chars)
            return compile_pattern(template.replace("{}", checked))
        except PatternError as error:
            self._refuse_pattern(param, key, error)
            return None

    def _refuse_pattern(self, param: str, pattern: str, error: PatternError) -> None:
        self._findings.refuse("pattern_unsupported", str(error), param=param, actual=pattern)


def _named(paths: Iterable[str], names: Iterable[str]) -> set[str]:
    """The paths that are one of `names`, or end in `.` and one of them."""
    wanted = frozenset(names)
    return {path for path in paths if not wanted.isdisjoint(_suffixes(path))}


def _suffixes(path: str) -> list[str]:
    segments = path.split(".")
    return [".".join(segments[position:]) for position in range(len(segments))]


def _contains(path: str) -> Callable[[tuple[str, ...]], bool]:
    """Whether consecutive segments of `path` are those of a name."""
    segments = path.split(".")

    def contains(name: tuple[str, ...]) -> bool:
        size = len(name)
        return any(tuple(segments[i : i + size]) == name for i in range(len(segments) - size + 1))

    return contains


def _layer_number(path: str, patterns: Iterable[Pattern]) -> int | None:
    for pattern in patterns:
        if (match := pattern.match(path)) is not None:
            return int(match.group("idx"))
    return None
