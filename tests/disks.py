"""Small disks that a test can fill: file systems in memory."""

import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def mounted_disk(folder, size="4m"):
    """Mount a new, empty disk of this size at a folder; skip the test if this machine cannot."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted on this machine")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
