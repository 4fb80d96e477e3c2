"""Which search backends a server has, in which order, and what they need. Times are seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from toolhub.config.section import Pause, Seconds, Section
from toolhub_servers.serving.options import MissingOption
from toolhub_servers.web.errors import Forbidden
from toolhub_servers.web.request import authority_of
from toolhub_servers.web.settings import WebSettings

S = TypeVar("S", bound=Section)
Backend = Literal["serper", "searxng", "exa", "sogou", "local"]

# A search service is asked many small things at once and answers in seconds or not at all.
SEARCH_WEB = {"total_s": 20.0, "per_host": 32, "retries": 2}


def _check_base_url(url: str) -> str:
    try:
        authority_of(url)
    except Forbidden as exc:
        raise ValueError(f"{url!r} is not an http or https URL") from exc
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_check_base_url)]


class _Optional(Section):
    """What is null or empty, as a variable that is not set, is as if it had not been given."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value is not None and value != ""}


class SerperSettings(_Optional):
    api_key: str | None = Field(default=None, repr=False)
    base_url: BaseUrl = "https://google.serper.dev"


class SearxngSettings(_Optional):
    """The instance must have `json` among its `search.formats`."""

    base_url: BaseUrl | None = None
    engines: list[str] = Field(default_factory=list)
    categories: list[str] = Field(default_factory=list)


class ExaSettings(_Optional):
    api_key: str | None = Field(default=None, repr=False)
    base_url: BaseUrl = "https://api.exa.ai"
    type: str = "auto"


class SogouSettings(_Optional):
    """Tencent Cloud's web search (WSA)."""

    secret_id: str | None = Field(default=None, repr=False)
    secret_key: str | None = Field(default=None, repr=False)
    base_url: BaseUrl = "https://wsa.tencentcloudapi.com"
    pause_s: Pause = 1
    """Before asking again after the service said that it was busy; doubled each time."""

    @property
    def has_keys(self) -> bool:
        return bool(self.secret_id and self.secret_key)

    def missing_options(self, *, is_needed: bool) -> list[MissingOption]:
        """What has to be set before the service can be asked."""
        way_out = "" if is_needed else ", so deny the tool if nobody needs it"
        loss = f"every call of sogou_search fails{way_out}"
        keys = [
            ("sogou.secret_id", self.secret_id, "TENCENTCLOUD_SECRET_ID"),
            ("sogou.secret_key", self.secret_key, "TENCENTCLOUD_SECRET_KEY"),
        ]
        return [
            MissingOption(option, name, loss, is_needed, "sogou_search") for option, value, name in keys if not value
        ]


class LocalSettings(_Optional):
    """A folder of .md, .txt, .html, .json and .jsonl documents."""

    folder: str | None = None
    base_url: BaseUrl | None = None
    """Where the folder is published; without it links are file: URLs."""
    cache_dir: str | None = None
    """Where the index is kept; default is the user's cache directory."""
    refresh_s: Pause = 5
    """A search looks for changed files if nobody has for that long."""
    patience_s: Seconds = 15
    """How long a search waits for an index that is being built for the first time."""


class SearchSettings(Section):
    backends: list[Backend] = Field(default=["serper"])
    """The next one is asked when one fails. None at all: searching is not available."""
    serper: SerperSettings = Field(default_factory=SerperSettings)
    searxng: SearxngSettings = Field(default_factory=SearxngSettings)
    exa: ExaSettings = Field(default_factory=ExaSettings)
    sogou: SogouSettings = Field(default_factory=SogouSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    web: WebSettings = Field(default_factory=lambda: WebSettings.model_validate(SEARCH_WEB))
    timeout_s: Seconds = 60
    """For one search over all backends, with their retries."""
    cache_s: Pause = 600
    """For that long the same query is not asked again, whichever task asks; 0: always asked."""


def read_settings(options: Mapping[str, Any]) -> SearchSettings:
    """Return the settings. Raises ValueError, with one sentence for each thing that is wrong."""
    web = options.get("web") or {}
    settings = validated(SearchSettings, {**options, "web": {**SEARCH_WEB, **web} if isinstance(web, Mapping) else web})
    if missing := list(_missing(settings)):
        raise ValueError("; ".join(missing))
    return settings


def validated(section: type[S], given: Any, name: str = "") -> S:
    """Return the section. Raises ValueError with sentences, where pydantic has a report. name: of the option."""
    try:
        return section.model_validate(given)
    except ValidationError as exc:
        problems = exc.errors(include_url=False, include_input=False)
        raise ValueError("; ".join(_sentence(problem, name) for problem in problems)) from None


def _sentence(problem: Any, name: str) -> str:
    where = ".".join([*([name] if name else []), *map(str, problem["loc"])])
    return f"option {where}: {problem['msg'].removeprefix('Value error, ')}"


def _missing(settings: SearchSettings) -> Iterator[str]:
    """What the chosen backends cannot do without. Looks at the disk."""
    sogou, folder = settings.sogou, settings.local.folder
    keys = {
        "serper": [("serper.api_key", settings.serper.api_key, "SERPER_API_KEY")],
        "exa": [("exa.api_key", settings.exa.api_key, "EXA_API_KEY")],
        "searxng": [("searxng.base_url", settings.searxng.base_url, "SEARXNG_BASE_URL")],
        "sogou": [
            ("sogou.secret_id", sogou.secret_id, "TENCENTCLOUD_SECRET_ID"),
            ("sogou.secret_key", sogou.secret_key, "TENCENTCLOUD_SECRET_KEY"),
        ],
        "local": [("local.folder", folder, "SEARCH_FOLDER")],
    }
    for name in settings.backends:
        for option, value, variable in keys[name]:
            if not value:
                yield (
                    f"search backend '{name}' needs the option {option}: give it in the config, for example as "
                    f"${{{variable}}}, or set the environment variable {variable} if the server runs alone"
                )
    if bool(sogou.secret_id) != bool(sogou.secret_key) and "sogou" not in settings.backends:
        yield "sogou.secret_id (TENCENTCLOUD_SECRET_ID) and sogou.secret_key (TENCENTCLOUD_SECRET_KEY) go together"
    if folder and "local" in settings.backends and not Path(folder).is_dir():
        yield (
            f"local.folder {str(Path(folder).absolute())!r} is not a directory: make it, or name another one, for "
            "example by the variable that the config has there (TOOLHUB_DOCS in configs/local.yaml)"
        )
