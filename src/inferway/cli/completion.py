"""`inferway completion`: what a shell needs to complete commands, flags and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from inferway.cli.flag import OneOf

_VARIABLE = "_INFERWAY_COMPLETE"  # click's: what the script sets when it asks


@click.command()
@click.argument("shell", type=OneOf(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, for its startup file.

    \b
    bash:  inferway completion bash > ~/.local/share/bash-completion/completions/inferway
    zsh:   inferway completion zsh > ~/.inferway.zsh; echo '. ~/.inferway.zsh' >> ~/.zshrc
    fish:  inferway completion fish > ~/.config/fish/completions/inferway.fish
    """
    from inferway.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(main, {}, "inferway", _VARIABLE)
    # Not `source()`: for bash that runs bash, to look at its version.
    click.echo(made.source_template % made.source_vars())
