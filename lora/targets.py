"""Which modules a configuration adapts, at which rank and alpha: PEFT's matching, module by module.

Knows nothing of tensors. Names are those of the model that was trained (`prefix` + `layers.N.` +
module), because that is what PEFT matched. Invariant: for every pattern it lets through, the
answer is PEFT's.

Source: PEFT's check_target_module_exists and get_pattern_key.
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
from lora.sites import EMBED_TOKENS, FUSED, LM_HEAD, NO_LAYER, ModuleKey

Value = TypeVar("Value", int, int | float)

# Modules that a list or a regex may name, and that PEFT cannot adapt.
_UNSERVED_IN_BODY = (
    "norm",
    "layers.0.input_layernorm",
    "layers.0.post_attention_layernorm",
)
_FIRST_NUMBER = r".*?\.[^.]*\.(?P<idx>\d+)\."


@dataclass(frozen=True, slots=True)
class Targets:
    """What the configuration says of each of the base's modules.

    `configured` is None where the configuration leaves it to the tensors (null).
    """

    configured: frozenset[ModuleKey] | None
    ranks: dict[ModuleKey, int]
    alphas: dict[ModuleKey, int | float]


def read_targets(
    config: PeftConfig,
    base: BaseSpec,
    prefix: str,
    fused: Collection[str],
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
    unserved = tuple(f"{prefix}{name}" for name in _UNSERVED_IN_BODY)
    reader = _TargetReader(config, paths, unserved, limits, findings)
    configured = _tied(config, base, reader.configured())
    ranks = reader.values("rank_pattern", config.rank_pattern, config.r)
    alphas = reader.values("alpha_pattern", config.alpha_pattern, config.lora_alpha)
    return None if findings.has_errors else Targets(configured, ranks, alphas)


def _tied(
    config: PeftConfig, base: BaseSpec, configured: frozenset[ModuleKey] | None
) -> frozenset[ModuleKey] | None:
    """With `ensure_weight_tying` PEFT adapts the head of a tied base where it adapts the embedding,
    and the reverse."""
    pair = {EMBED_TOKENS, LM_HEAD}
    if configured is None or not (config.whole.keeps_tied and base.tie_word_embeddings):
        return configured
    return configured | pair if configured & pair else configured


class _TargetReader:
    def __init__(
        self,
        config: PeftConfig,
        paths: dict[str, ModuleKey],
        unserved: tuple[str, ...],
        limits: ManifestLimits,
        findings: Findings,
    ) -> None:
        self._config = config
        self._paths = paths
        self._unserved = unserved
        self._limits = limits
        self._findings = findings

    def configured(self) -> frozenset[ModuleKey] | None:
        """The modules that the configuration targets."""
        target_modules = self._config.target_modules
        if target_modules is None:
            return None
        excluded = self._excluded()
        if isinstance(target_modules, str):
            chosen = self._chosen_by_string(target_modules)
        else:
            chosen = self._in_layers(self._chosen_by_list(target_modules))
        chosen -= excluded | self._saved_whole()
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
            return self._matching(exclude, "exclude_modules", self._paths)
        return _named(self._paths, exclude)

    def _saved_whole(self) -> set[str]:
        """What `modules_to_save` names, which PEFT then does not adapt."""
        names = {tuple(name.split(".")) for name in self._config.whole.modules_to_save}
        return {path for path in self._paths if any(map(_contains(path), names))}

    def _chosen_by_string(self, target_modules: str) -> set[str]:
        if target_modules.lower() == ALL_LINEAR:
            return {path for path, (layer, _) in self._paths.items() if layer != NO_LAYER}
        names = [*self._paths, *self._unserved]
        matching = self._matching(target_modules, "target_modules", names)
        self._refuse_unserved(sorted(matching.intersection(self._unserved)))
        return matching.intersection(self._paths)

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

    def _in_layers(self, paths: set[str]) -> set[str]:
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
        return {
            path
            for path in paths
            # NOTE: PEFT does not look at the layer of a module that is named by its whole path.
            if path in (self._config.target_modules or ())
            or _layer_number(path, [each for each in patterns if each]) in layers
        }

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
