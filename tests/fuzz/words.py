"""Target: the words of the command line, drawn from the commands and options that there are."""

import json

import click
import numpy as np
from command_line import run_here

from fxdask.cli.main import COMMANDS, cli

from .engine import Target
from .stores import X, Y, classifier

ODD_WORDS = (
    *("", " ", "-", "--", "---", "-1", "0", "1", "7", "1.5", "nan", "inf", "-inf", "1e999", "9" * 400, "0x10", "१२"),
    *("a,b", ",", "a,,b", "x" * 300, "x" * 5000, "two\nlines", "\u2028", "\x1b[31m", "not UTF-8 \udcff", "🦊", "None"),
    *(
        "0-1",
        "3,",
        "1-1",
        "0-99",
        "5m",
        "2GiB",
        "-2GiB",
        "1e30TiB",
        "=",
        "--json=1",
        "@file",
        "$HOME",
        "*",
        "~nobody/x",
    ),
)
PATHS = (
    *("missing", "missing/deeper/x.zarr", "empty", "garbage.npy", "garbage.parquet", "folder", "folder/", "."),
    *(
        "link",
        "X.npy/inside",
        "x" * 300,
        "file://missing",
        "nonsense://host/x",
        "s3:/x",
        "a//b",
        "::",
        "C:\\x",
        "\udcff",
    ),
    *("garbage.zarr", "/dev/null", "results.json", "garbage.csv"),
)
ONLY_READING = ("info", "verify")
"""Commands that may be given a model: the others would work for long."""
SCHEDULERS = ("", "nonsense://host", "tcp://", "tcp://x:y", "://", "tls://", "not UTF-8 \udcff")
MOST_OPTIONS = 5


class CommandWords(Target):
    """All commands with real and unknown options, odd values, and paths of nothing, of garbage and of a model."""

    refuses = False

    def valid_files(self):
        self.work = self.folder / "work"
        (self.work / "folder").mkdir(parents=True)
        (self.work / "garbage.zarr").mkdir()
        for name in ("garbage.npy", "garbage.parquet", "garbage.csv", "garbage.zarr/zarr.json", "results.json"):
            (self.work / name).write_bytes(b"garbage")
        (self.work / "empty").touch()
        (self.work / "link").symlink_to("nowhere")
        np.save(self.work / "X.npy", X)
        classifier(self.work / "model.zarr").fit(X, Y)
        with click.Context(cli) as context:
            self.parameters = {name: cli.get_command(context, name).params for name in COMMANDS}
        lines = (["info", "model.zarr"], ["verify", "model.zarr", "--json"], ["--help"], ["--version"])
        return [("words", json.dumps(line).encode()) for line in lines]

    def mutate(self, rng, content):
        """Another line of words; the content is used only sometimes."""
        if rng.random() < 0.2:
            words = json.loads(content)
            words.insert(rng.randint(0, len(words)), rng.choice(("--json", "--help", "-h", *ODD_WORDS, *COMMANDS)))
        else:
            words = self.drawn(rng)
        is_safe = words[:1] and (words[0] not in COMMANDS or words[0] in ONLY_READING or "model.zarr" not in words)
        return json.dumps(words if is_safe and "reproduce" not in words[1:] else ["info", *words[1:]]).encode()

    def drawn(self, rng):
        """A command with its arguments and some of its options."""
        name = rng.choice(COMMANDS)
        words = []
        for parameter in self.parameters[name]:
            if isinstance(parameter, click.Argument) and rng.random() < 0.95:
                words.append(self.value(rng, name, parameter))
        options = [one for one in self.parameters[name] if isinstance(one, click.Option)]
        for option in rng.sample(options, rng.randint(0, min(MOST_OPTIONS, len(options)))):
            words += self.option(rng, name, option)
        if rng.random() < 0.3:
            rng.shuffle(words)
        if rng.random() < 0.3:
            words.append("--json")
        # Without a folder of images, the experiment would download them or run.
        return [name, *words, *(["--data", rng.choice(PATHS)] if name == "reproduce" else [])]

    def option(self, rng, name, option):
        word = rng.choice([*option.opts, *option.secondary_opts])
        word = word[: rng.randint(2, len(word))] if rng.random() < 0.05 else word
        if option.is_flag and rng.random() < 0.95:
            return [word]
        if rng.random() < 0.03:
            return [word]
        value = self.value(rng, name, option)
        return [f"{word}={value}"] if rng.random() < 0.2 else [word, value]

    def value(self, rng, name, parameter):
        if parameter.name == "scheduler":
            return rng.choice(SCHEDULERS)
        if isinstance(parameter.type, click.Path):
            paths = (*PATHS, "X.npy", *(["model.zarr"] * 3 if name in ONLY_READING else []))
            return rng.choice(paths)
        if isinstance(parameter.type, click.Choice) and rng.random() < 0.7:
            return rng.choice([*parameter.type.choices])
        return rng.choice(ODD_WORDS)

    def feed(self, place, content):
        words = json.loads(content)
        done = run_here(self.work, *words)
        # After an option that needs a value, the word is that value; after "--", all words are paths.
        options = words[: words.index("--")] if "--" in words else words
        as_json = "--json" in options and not options[options.index("--json") - 1].startswith("-")
        check_answer(done, as_json=as_json)


def check_answer(done, *, as_json):
    """Check the exit status, and that an error is one line, and a JSON object if that was asked for."""
    assert done.returncode in (0, 1, 2), done.returncode
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith("warning: ")]
    if done.returncode == 1:
        assert not lines or lines[-1].startswith("error: "), done.stderr
        assert sum(line.startswith("error: ") for line in lines) == bool(lines), done.stderr
    if done.returncode == 2:
        assert lines, "a wrong word is refused without a reason"
        assert lines[-1].startswith("Error: "), done.stderr
    if done.returncode and as_json:
        answer = json.loads(done.stdout)
        assert answer.get("good") is False or (answer["error"] and answer["type"]), done.stdout
