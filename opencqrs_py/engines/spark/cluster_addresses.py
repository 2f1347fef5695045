"""Where Spark would find the cluster with the masters ``k8s://…`` and ``yarn``, as far as that is known here.

No address is returned where something else may decide: a proxy, a script that sets Spark's environment, or a file that
is not understood. Spark then resolves it itself. Runs on the driver, before any work is given to Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

Address = tuple[str, int]

_PORTS = {"https": 443, "http": 80}
_KUBERNETES = "k8s://"
_RESOURCE_MANAGER = "yarn.resourcemanager"
_RESOURCE_MANAGER_PORT = 8032
_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_ENVIRONMENT_SCRIPTS = ("spark-env.sh", "spark-env.cmd")
_YARN_SITE = "yarn-site.xml"
_HADOOP_FILES = ("core-site.xml", _YARN_SITE)  # the second takes precedence
_DRIVER_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_ADDRESS = re.compile(r"(?P<host>[^\s:/,]+)(:(?P<port>\d{1,5}))?")
_REFERENCE = re.compile(r"\$\{([^{}$\s]+)\}")
_MOST_REFERENCES = 20  # as Hadoop has it: more of them refer to each other
_FACTORY, _STANDARD_FACTORY = "hadoop.rpc.socket.factory.class", "org.apache.hadoop.net.StandardSocketFactory"


@dataclass(frozen=True)
class LaunchSettings:
    """What a JVM that is launched now will find.

    Attributes:
        said: Returns the value of a setting of Spark; ``None`` without one.
        environ: The environment.
        home: Spark's folder.
    """

    said: Callable[[str], str | None]
    environ: Mapping[str, str] = field(repr=False)
    home: str

    @property
    def conf_folder(self) -> str:
        """The folder of Spark's settings."""
        return self.environ.get("SPARK_CONF_DIR") or str(Path(self.home, "conf"))

    @property
    def runs_a_script(self) -> bool:
        """Whether a script of the user sets the environment, which may then differ from ours."""
        return any(Path(self.conf_folder, name).is_file() for name in _ENVIRONMENT_SCRIPTS)

    @property
    def java_options(self) -> str:
        """The options of the driver's Java."""
        return " ".join(filter(None, [*map(self.said, _DRIVER_OPTIONS), *map(self.environ.get, _JAVA_VARIABLES)]))


def kubernetes_addresses(master: str, launch: LaunchSettings) -> list[Address]:
    """Return host and port of the API server; nothing if it may be reached in another way."""
    url = master.removeprefix(_KUBERNETES)
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")  # as Spark completes it
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return []
    return [(host, port)] if host and port and not _through_proxy(launch) else []


def _through_proxy(launch: LaunchSettings) -> bool:
    """Return whether the client of Kubernetes may use a proxy, which knows hosts that this machine does not."""
    if launch.runs_a_script or re.search(r"-D(kubernetes|https?|all)\.", launch.java_options):
        return True
    if any(launch.environ.get(f"{scheme}_proxy".upper()) for scheme in ("http", "https", "all")):
        return True
    files = launch.environ.get("KUBECONFIG") or str(Path("~", ".kube", "config"))
    return any("proxy-url" in _text(file) for file in files.split(os.pathsep))


def lacks_hadoop_settings(launch: LaunchSettings) -> bool:
    """Return whether no variable names the folder of Hadoop's settings, without which Spark refuses ``yarn``."""
    return not launch.runs_a_script and not any(name in launch.environ for name in _HADOOP_FOLDERS)


def yarn_site(launch: LaunchSettings) -> Path | None:
    """Return the file that would name the ResourceManager; ``None`` if there is none in the folders of settings."""
    return next((file for file in _candidates(launch, _YARN_SITE) if file.is_file()), None)


def _candidates(launch: LaunchSettings, name: str) -> Iterator[Path]:
    named = (launch.environ.get(variable, "").split(os.pathsep) for variable in _HADOOP_FOLDERS)
    for folder in filter(None, [launch.conf_folder, *chain.from_iterable(named)]):
        yield Path(folder, name)


def yarn_addresses(launch: LaunchSettings) -> list[Address]:
    """Return host and port of each ResourceManager; nothing if they cannot be known for sure."""
    try:
        settings = _HadoopSettings(launch)
        return [] if launch.runs_a_script or settings.lead_elsewhere() else list(settings.resource_managers())
    except (LookupError, ValueError, OSError, ET.ParseError):
        return []


class _HadoopSettings:
    """Hadoop's settings, as its client on the driver reads them.

    Raises ``LookupError`` or ``ValueError`` where they are not understood, also from its methods.
    """

    def __init__(self, launch: LaunchSettings) -> None:
        self._launch = launch
        self._files = {f"{_RESOURCE_MANAGER}.hostname": "0.0.0.0"}  # noqa: S104 Hadoop's default, to connect to
        fixed = set[str]()
        for name in _HADOOP_FILES:
            if file := self._found(name):
                found, final = _properties(file)
                self._files |= {key: value for key, value in found.items() if key not in fixed}
                fixed |= final

    def lead_elsewhere(self) -> bool:
        """Return whether something other than the address decides which ResourceManager is contacted, and how."""
        factories = [value for key, value in self._files.items() if key.startswith(_FACTORY)]
        factories.append(self._launch.said(f"spark.hadoop.{_FACTORY}.default") or "")
        return (
            self._is_true("yarn.federation.enabled")
            or any(factory not in {"", _STANDARD_FACTORY} for factory in factories)
            or re.search(r"-D(yarn|hadoop)\.", self._launch.java_options) is not None
        )

    def resource_managers(self) -> Iterator[Address]:
        """Yield the addresses; of several, Hadoop uses the active one."""
        if self._is_true(f"{_RESOURCE_MANAGER}.ha.enabled"):
            for one in self._required(f"{_RESOURCE_MANAGER}.ha.rm-ids").split(","):
                yield self._address(f".{one.strip()}")
        else:
            yield self._address("")

    def _address(self, suffix: str) -> Address:
        said = self._value(f"{_RESOURCE_MANAGER}.address{suffix}")
        match = _ADDRESS.fullmatch(said or self._required(f"{_RESOURCE_MANAGER}.hostname{suffix}"))
        if match is None or int(match["port"] or 0) > 65_535:
            raise ValueError(said)
        return match["host"], int(match["port"] or _RESOURCE_MANAGER_PORT)

    def _is_true(self, key: str) -> bool:
        return (self._value(key) or "").lower() == "true"

    def _required(self, key: str) -> str:
        if value := self._value(key):
            return value
        raise LookupError(key)

    def _value(self, key: str) -> str | None:
        value = self._raw(key)
        for _ in range(_MOST_REFERENCES):
            match = _REFERENCE.search(value or "")
            if value is None or match is None:
                return value
            value = value[: match.start()] + self._referred(match[1]) + value[match.end() :]
        raise ValueError(key)

    def _referred(self, key: str) -> str:
        value = self._raw(key)
        if value is None:
            raise LookupError(key)
        return value

    def _raw(self, key: str) -> str | None:
        said = self._launch.said(f"spark.hadoop.{key}")
        value = self._files.get(key) if said is None else said
        return None if value is None else value.strip()

    def _found(self, name: str) -> Path | None:
        """Return the file that comes first on the driver's class path."""
        environ = self._launch.environ
        ahead = [self._launch.said("spark.driver.extraClassPath"), environ.get("SPARK_DIST_CLASSPATH")]
        for entry in ":".join(filter(None, ahead)).split(":"):
            if entry and not entry.endswith((".jar", "*")):
                raise LookupError(entry)  # a folder that may have such a file
        return next((file for file in _candidates(self._launch, name) if file.is_file()), None)


def _properties(file: Path) -> tuple[dict[str, str], set[str]]:
    """Return the properties of a file of Hadoop's settings, and which of them later files do not change.

    Raises:
        LookupError: If it includes other files.
    """
    root = ET.fromstring(file.read_bytes())  # noqa: S314 the user's own file
    if any("XInclude" in str(element.tag) for element in root.iter()):
        raise LookupError(file)
    found, final = dict[str, str](), set[str]()
    for each in root.iter("property"):
        name, value = (_part(each, "name") or "").strip(), _part(each, "value")
        if name and value is not None:
            found[name] = value
            if (_part(each, "final") or "").strip() == "true":
                final.add(name)
    return found, final


def _part(element: ET.Element, name: str) -> str | None:
    return element.get(name) or element.findtext(name)


def _text(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):  # the latter without a home
        return ""
