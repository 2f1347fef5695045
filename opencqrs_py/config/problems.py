"""What can be wrong with a configuration: codes, and the findings of one load."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from opencqrs_py.errors import ConfigurationError, ConfigurationErrors

MOST_UNKNOWN = 100  # guessing what was meant takes half a millisecond each

# How large a source may be: beyond it, a file is an accident or an attack, and reading it would never end. A key of
# this package has at most six levels, and a hundred groups with every setting have some four thousand nodes.
MOST_BYTES = 4 * 1024 * 1024  # of a file; a ConfigMap of Kubernetes holds at most 1 MiB
MOST_LEVELS = 100  # of a key, and of what is nested in brackets
MOST_NODES = 20_000  # keys and values of one file, each alias counted as often as it is used
MOST_CHAINED = 50  # placeholders that stand for each other or in each other
MOST_PLACEHOLDERS = 20_000  # that are replaced for all values together
MOST_CHARACTERS = 1024 * 1024  # of a value, in place of its placeholders


class Code(StrEnum):
    """Codes of configuration errors and warnings; each has a heading in ``docs/reference/errors.md``."""

    FILE_UNREADABLE = "OCQ-101"
    FILE_MISSING = "OCQ-102"
    UNKNOWN_KEY = "OCQ-103"
    UNKNOWN_VARIABLE = "OCQ-104"
    TWO_READINGS = "OCQ-105"
    SET_TWICE = "OCQ-106"
    WRONG_SHAPE = "OCQ-107"
    PLACEHOLDER = "OCQ-108"
    PROFILE = "OCQ-109"
    ARGUMENT = "OCQ-110"
    VALUE = "OCQ-111"
    CHOICE = "OCQ-112"
    DURATION = "OCQ-113"
    RANGE = "OCQ-114"
    VALUE_MISSING = "OCQ-115"
    ALIKE_GROUPS = "OCQ-116"
    GROUP_WITHOUT_HANDLER = "OCQ-117"
    DEPRECATED_KEY = "OCQ-118"
    UNKNOWN_PROFILE = "OCQ-119"
    TOO_MUCH = "OCQ-120"
    UNLIMITED_ATTEMPTS = "OCQ-121"
    JOB_WITHOUT_CODE = "OCQ-122"
    RIVALS = "OCQ-123"
    RESERVED_NAME = "OCQ-124"
    UNREAD_FILE = "OCQ-125"
    NO_EFFECT = "OCQ-126"


@dataclass(frozen=True, slots=True)
class ConfigurationWarning:
    """Something that works, but probably not as intended.

    Args:
        code: Stable identifier, ``OCQ-1`` and two digits.
        what: What was noticed, one sentence without a full stop.
        where: The place; empty when there is none.
        fix: What to do about it.
    """

    code: str
    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return str(ConfigurationError(self.code, self.what, self.where, self.fix))


@dataclass(frozen=True, slots=True)
class GroupWithoutHandlerWarning(ConfigurationWarning):
    """A group has settings and, as far as is known, no handler (OCQ-117).

    Args:
        group: The group, as the settings spell it.
    """

    group: str = ""


class JobWithoutCodeWarning(ConfigurationWarning):
    """Settings name a job and, as far as is known, no code has it (OCQ-122)."""


class ProfilesUnknownError(ConfigurationError):
    """A profile or a placeholder is wrong (OCQ-108, OCQ-109), so the active profiles are unknown."""


@dataclass(slots=True)
class Findings:
    """The problems found so far; a load gathers them, to report all of them together."""

    errors: list[ConfigurationError] = field(default_factory=list)
    warnings: list[ConfigurationWarning] = field(default_factory=list)
    unknown: dict[str, ConfigurationError] = field(default_factory=dict)
    unknown_found: int = 0
    ignored: dict[str, None] = field(default_factory=dict)
    """Names of the variables that Kubernetes sets for Services, in the order in which they were found."""

    def error(self, code: Code, what: str, where: object = "", fix: str = "") -> None:
        """Add an error, which prevents the start."""
        self.errors.append(ConfigurationError(code.value, what, str(where), fix))

    def profiles_unknown(self, code: Code, what: str, where: object = "", fix: str = "") -> None:
        """Add an error that leaves the active profiles unknown."""
        self.errors.append(ProfilesUnknownError(code.value, what, str(where), fix))

    def warning(self, code: Code, what: str, where: object = "", fix: str = "") -> None:
        """Add a warning."""
        self.warnings.append(ConfigurationWarning(code.value, what, str(where), fix))

    def unknown_name(self, code: Code, what: str, where: object = "", fix: str = "") -> None:
        """Add an unknown key or variable; ``config.unknown`` decides how it is treated."""
        self.unknown_found += 1
        error = ConfigurationError(code.value, what, str(where), fix)
        self.unknown.setdefault(str(error), error)

    def failure(self) -> ConfigurationErrors:
        """Return all errors found as one, each once; there must be at least one."""
        return ConfigurationErrors(tuple({str(error): error for error in self.errors}.values()))


def alike_groups(one: str, other: str, where: str, noun: str = "groups") -> tuple[str, str, str]:
    """Return message, place and fix for a group, or another thing with settings, whose name code spells in two ways."""
    what = f"the {noun} {one} and {other} cannot be distinguished in settings"
    return what, where, "write the same name in both places, or rename one: case, - and _ make no difference"
