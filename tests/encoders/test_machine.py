"""The processor's features, and the probe that survives its broken promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridr.doctor import health_checks
from hybridr.encoders import machine
from hybridr.encoders.machine import Cpu
from hybridr.files.local import state_folder

X86 = """processor\t: 0
model name\t: Some Processor 9000
flags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd i8mm\n"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def cpu_file(folder: Path, text: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(text, encoding="utf-8")
    return path


def test_features_of_x86_and_arm(tmp_path: Path) -> None:
    cpu = machine.read_cpu(cpu_file(tmp_path, X86))
    assert cpu.model == "Some Processor 9000"
    assert "amx_tile" in cpu.flags
    arm = health_checks.check_cpu(machine.read_cpu(cpu_file(tmp_path, ARM)))
    assert arm.ok
    assert arm.found.endswith(": NEON, I8MM; int8 encodes faster than fp32 here")


@pytest.mark.parametrize(
    ("flags", "pays"),
    [("avx2", False), ("avx2 avx512f", False), ("avx2 avx_vnni", True), ("avx512f avx512_vnni", True)],
)
def test_int8_pays_where_bytes_are_multiplied_at_once(flags: str, pays: bool) -> None:
    cpu = Cpu("some", frozenset(flags.split()))
    assert machine.has_byte_products(cpu) is pays
    assert ("encode in fp32" in health_checks.check_cpu(cpu).found) is not pays


def test_without_cpuinfo_the_check_still_says_something(tmp_path: Path) -> None:
    cpu = machine.read_cpu(tmp_path / "nothing")
    assert not cpu.flags
    assert "no features listed" in health_checks.check_cpu(cpu).found


@pytest.mark.parametrize(
    ("program", "works"),
    [("print(64.0)", True), (DIES, False), ("raise SystemExit(3)", None), ("import nope", None)],
)
def test_the_probe_survives_what_kills_its_child(promised: Cpu, monkeypatch, program, works) -> None:
    monkeypatch.setattr(machine, "BF16_PRODUCT", program)
    assert machine.amx_works(promised) is works


def test_a_bfloat16_product_runs_here_or_dies_in_the_child_only() -> None:
    assert machine.try_program(machine.BF16_PRODUCT)[:10] in ("", "killed by ")


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cpu:
    """A processor that lists AMX and dies of it, as some virtual machines do."""
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(machine, "BF16_PRODUCT", DIES)
    monkeypatch.setattr(machine, "CPU_INFO", cpu_file(tmp_path, X86))
    return machine.read_cpu(machine.CPU_INFO)


def test_a_broken_amx_is_told_with_its_fix(promised: Cpu) -> None:
    check = health_checks.check_cpu(promised)
    assert check.ok is None
    assert check.found.endswith("AMX is advertised but does not work")
    assert check.fix == "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"


def test_the_answer_is_kept_for_this_processor_and_torch(promised: Cpu, monkeypatch) -> None:
    assert machine.amx_works(promised) is False
    assert list(json.loads((state_folder() / "amx.json").read_text()).values()) == [False]
    monkeypatch.setattr(machine, "BF16_PRODUCT", "print(64.0)")
    assert machine.amx_works(promised) is False
    assert machine.amx_works(promised._replace(model="another")) is True


def test_a_damaged_answer_is_asked_again(promised: Cpu) -> None:
    state_folder().mkdir(parents=True)
    (state_folder() / "amx.json").write_text("{broken")
    assert machine.amx_works(promised) is False


def test_an_undecided_probe_is_not_kept(promised: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BF16_PRODUCT", "raise SystemExit(3)")
    assert machine.amx_works(promised) is None
    assert not (state_folder() / "amx.json").exists()


def test_the_packages_of_an_extra_are_those_of_the_installed_hybridr() -> None:
    assert {"torch", "transformers", "peft"} <= set(machine.packages_of_extra("train"))
    assert machine.packages_of_extra("no-such-extra") == []
