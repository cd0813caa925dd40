"""nvidia-smi in all its moods: small fixtures of our own, the shared cases where they are, and cuts anywhere in them."""

from __future__ import annotations

import re
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from console.node.gpu import Gpu, GpuSample, read_smi
from console.node.smi import parse_apps_csv, with_processes

MIB = 1 << 20
CASES = Path("/work/shared/cases/smi")

CSV = """index, name, pci.bus_id, memory.total [MiB], memory.used [MiB], utilization.gpu [%], power.draw [W], temperature.gpu, mig.mode.current, driver_version, compute_cap
0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 00000000:16:00.0, 97887 MiB, 88450 MiB, 100 %, 299.12 W, 87, N/A, 580.95.05, 12.0
1, NVIDIA RTX PRO 6000 Blackwell Server Edition, 00000000:34:00.0, 97887 MiB, 4 MiB, 0 %, [N/A], 31, N/A, 580.95.05, 12.0
"""

TABLE = """Thu Aug 27 18:05:38 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:16:00.0 Off |                    3 |
| 58%   87C    P1            299W /  600W |   88450MiB /  97887MiB |    100%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:34:00.0 Off |                  Off |
| ERR!  45C   ERR!          ERR! /  600W |      10MiB /  97887MiB |    ERR!      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            6194      C   VLLM::Worker_TP1                      88438MiB |
+-----------------------------------------------------------------------------------------+
"""

OLD_TABLE = """+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:06:00.0 Off |                    0 |
| N/A   36C    P0    42W / 300W |  16130MiB / 32480MiB |     12%      Default |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0      9217      C   python                                     16119MiB |
+-----------------------------------------------------------------------------+
"""

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version>
  <cuda_version>13.0</cuda_version>
  <attached_gpus>2</attached_gpus>
  <gpu id="00000000:16:00.0">
    <product_name>NVIDIA RTX PRO 6000 Blackwell Server Edition</product_name>
    <uuid>GPU-11111111-2222-3333-4444-555555555555</uuid>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <fb_memory_usage><total>97887 MiB</total><reserved>637 MiB</reserved><used>88450 MiB</used></fb_memory_usage>
    <utilization><gpu_util>99 %</gpu_util></utilization>
    <ecc_errors><volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
      <sram_uncorrectable_secded>2</sram_uncorrectable_secded><dram_uncorrectable>4</dram_uncorrectable></volatile></ecc_errors>
    <remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
    <temperature><gpu_temp>87 C</gpu_temp></temperature>
    <gpu_power_readings><average_power_draw>N/A</average_power_draw><instant_power_draw>299.10 W</instant_power_draw>
      <current_power_limit>600.00 W</current_power_limit></gpu_power_readings>
    <processes><process_info><pid>77</pid><type>C</type><process_name>python a && b <x></process_name>
      <used_memory>88438 MiB</used_memory></process_info></processes>
  </gpu>
  <gpu id="00000000:34:00.0">
    <product_name>NVIDIA RTX PRO 6000 Blackwell Server Edition</product_name>
    <fb_memory_usage><total>97887 MiB</total><used>4 MiB</used></fb_memory_usage>
    <power_readings><power_draw>30.50 W</power_draw><power_limit>600.00 W</power_limit></power_readings>
  </gpu>
</nvidia_smi_log>
"""

Q = """==============NVSMI LOG==============

Timestamp                                 : Thu Aug 27 18:05:38 2026
KMD Version                               : 610.57.04
CUDA UMD Version                          : 13.3

Attached GPUs                             : 1
GPU 00000000:16:00.0
    Product Name                          : NVIDIA GB10
    MIG Mode
        Current                           : N/A
    GPU UUID                              : GPU-11111111-2222-3333-4444-555555555555
    FB Memory Usage
        Total                             : N/A
        Used                              : N/A
    Utilization
        GPU                               : 7 %
    Temperature
        GPU Current Temp                  : 53 C
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : 11.17 W
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4711
            Type                          : C
            Used GPU Memory               : 123 MiB
"""


def ids(sample: GpuSample) -> list[tuple[str, int | None]]:
    return [(found.id, found.gpu) for found in sample.findings]


def test_csv_with_units_and_header() -> None:
    sample = read_smi(CSV)
    first, second = sample.gpus
    assert (sample.driver, first.index, first.capability) == ("580.95.05", 0, (12, 0))
    assert (first.memory_total, first.memory_used, first.utilisation) == (97887 * MIB, 88450 * MIB, 100)
    assert (first.power, first.temperature, first.bus) == (299.12, 87, "00000000:16:00.0")
    assert (second.power, second.memory_used, second.mig) == (None, 4 * MIB, None)
    assert ids(sample) == []


def test_csv_columns_are_found_by_their_header_in_any_order_and_without_units() -> None:
    sample = read_smi("memory.used [MiB], index, memory.total [MiB]\n12, 7, 97887\n")
    assert [(gpu.index, gpu.memory_used, gpu.memory_total) for gpu in sample.gpus] == [(7, 12 * MIB, 97887 * MIB)]


def test_csv_without_header_is_read_only_when_the_columns_are_told() -> None:
    text = "[N/A], 24576, NVIDIA H100L-2-24C\n"
    assert read_smi(text).gpus == ()
    assert ids(read_smi(text)) == [("smi-unreadable", None)]
    told = read_smi(text, fields=["clocks.max.sm", "memory.total", "gpu_name"])
    assert [(gpu.memory_total, gpu.name) for gpu in told.gpus] == [(24576 * MIB, "NVIDIA H100L-2-24C")]


@pytest.mark.parametrize(
    ("cell", "id"),
    [("[GPU is lost]", "gpu-lost"), ("[GPU requires reset]", "needs-reset"), ("[Unknown Error]", "field-error")],
)
def test_error_words_in_cells_are_findings_and_not_numbers(cell: str, id: str) -> None:
    sample = read_smi(f"index, memory.total [MiB], memory.used [MiB]\n3, {cell}, {cell}\n")
    assert (sample.gpus[0].index, sample.gpus[0].memory_total, sample.gpus[0].memory_used) == (3, None, None)
    assert (id, 3) in ids(sample)
    assert sample.gpus[0].lost == (id == "gpu-lost")


def test_no_memory_of_its_own_is_unknown_and_told() -> None:
    for cell in ("[N/A]", "[Not Supported]", "0 MiB"):
        sample = read_smi(f"memory.total [MiB], memory.used [MiB], power.draw [W]\n{cell}, {cell}, 11.17 W\n")
        assert (sample.gpus[0].memory_total, sample.gpus[0].memory_used, sample.gpus[0].power) == (None, None, 11.17)
        assert ids(sample) == [("unified-memory", 0)]


def test_table() -> None:
    sample = read_smi(TABLE)
    first, second = sample.gpus
    assert (sample.driver, sample.cuda) == ("580.95.05", "13.0")
    assert (first.memory_used, first.memory_total, first.power, first.power_limit) == (
        88450 * MIB,
        97887 * MIB,
        299.0,
        600.0,
    )
    assert [(one.pid, one.memory, one.command) for one in first.processes] == [(6194, 88438 * MIB, "VLLM::Worker_TP1")]
    assert (second.power, second.utilisation, second.temperature, second.memory_used) == (None, None, 45, 10 * MIB)
    assert second.mig is False
    assert set(ids(sample)) == {("ecc-uncorrected", 0), ("field-error", 1)}


def test_table_of_an_old_driver() -> None:
    sample = read_smi(OLD_TABLE)
    assert [(gpu.index, gpu.memory_used, gpu.utilisation, gpu.mig) for gpu in sample.gpus] == [
        (0, 16130 * MIB, 12, None)
    ]
    assert [one.pid for one in sample.gpus[0].processes] == [9217]
    assert ids(sample) == []


def test_xml_with_an_unescaped_process_name_and_both_places_of_power() -> None:
    sample = read_smi(XML)
    first, second = sample.gpus
    assert (first.memory_total, first.memory_used, first.memory_reserved) == (97887 * MIB, 88450 * MIB, 637 * MIB)
    assert (first.power, second.power, second.power_limit) == (299.1, 30.5, 600.0)
    assert (first.ecc_uncorrected, first.remap_pending, first.remap_failed) == (7, True, False)
    assert first.processes[0].command == "python a && b <x>"
    assert set(ids(sample)) == {("ecc-uncorrected", 0), ("remap-pending", 0)}


def test_broken_xml_keeps_what_is_whole_before_the_break() -> None:
    sample = read_smi(XML[: XML.index("30.50")])
    assert [gpu.index for gpu in sample.gpus] == [0]
    assert ("smi-broken-xml", None) in ids(sample)


def test_fewer_gpus_in_xml_than_attached_leave_the_indices_unsure() -> None:
    assert ("index-unsure", None) in ids(read_smi(XML.replace("<attached_gpus>2", "<attached_gpus>4")))


def test_q_of_a_unified_memory_machine_with_the_new_version_lines() -> None:
    sample = read_smi(Q)
    gpu = sample.gpus[0]
    assert (sample.driver, sample.cuda, gpu.power, gpu.utilisation, gpu.temperature) == (
        "610.57.04",
        "13.3",
        11.17,
        7,
        53,
    )
    assert (gpu.memory_total, gpu.memory_used) == (None, None)
    assert [(one.pid, one.memory) for one in gpu.processes] == [(4711, 123 * MIB)]
    assert ids(sample) == [("unified-memory", 0)]


@pytest.mark.parametrize(
    ("text", "code", "id"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n",
            18,
            "driver-mismatch",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "driver-mismatch"),
        ("Failed to initialize NVML: Driver Not Loaded\n", 9, "driver-not-loaded"),
        ("Failed to initialize NVML: Insufficient Permissions\n", 4, "no-permission"),
        ("Failed to initialize NVML: Unknown Error\n", 255, "nvml-failed"),
        ("No devices were found\n", 6, "no-devices"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure …\n",
            9,
            "driver-not-loaded",
        ),
        ("bash: nvidia-smi: command not found\n", 127, "no-driver"),
        ("", 127, "no-driver"),
        ("", None, "smi-wedged"),
        ("", 0, "smi-unreadable"),
        ("hello\n", 0, "smi-unreadable"),
    ],
)
def test_troubles_of_the_whole_machine(text: str, code: int | None, id: str) -> None:
    sample = read_smi(text, code)
    assert sample.gpus == ()
    assert id in [found for found, _ in ids(sample)]


def test_a_lost_gpu_beside_a_reading_gets_its_own_place() -> None:
    sample = read_smi("Unable to determine the device handle for GPU2: 0000:AC:00.0: Unknown Error\n" + TABLE)
    assert [(gpu.index, gpu.lost) for gpu in sample.gpus] == [(0, False), (1, False), (2, True)]
    assert ("gpu-lost", 2) in ids(sample)


def test_a_lost_gpu_known_by_its_bus_alone_names_the_bus() -> None:
    sample = read_smi("Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system\n")
    assert ids(sample) == [("gpu-lost", None)]
    assert "0000:0B:00.0" in sample.findings[0].text
    assert sample.gpus == ()


def test_processes_are_joined_by_uuid() -> None:
    sample = read_smi(
        "index, uuid, memory.used [MiB], memory.total [MiB]\n0, GPU-a, 5 MiB, 10 MiB\n1, GPU-b, 5 MiB, 10 MiB\n"
    )
    apps = parse_apps_csv("gpu_uuid, pid, used_gpu_memory [MiB]\nGPU-b, 12, 4 MiB\nGPU-b, 13, [N/A]\nGPU-b, 1")
    joined = with_processes(sample, apps, {"12": ["alice", "python x", "job.service", 99]})
    assert joined.gpus[0].processes == ()
    assert [(one.pid, one.memory, one.owner, one.unit, one.started) for one in joined.gpus[1].processes] == [
        (12, 4 * MIB, "alice", "job.service", 99),
        (13, None, None, None, None),
    ]


# ------------------------------------------------------------------------------------------------------ cut anywhere

WHOLE = {"csv": CSV, "table": TABLE, "old table": OLD_TABLE, "xml": XML, "q": Q}


def numbers(gpu: Gpu) -> dict[str, Any]:
    return {field.name: getattr(gpu, field.name) for field in fields_of(gpu) if field.name not in ("processes", "lost")}


def never_wrong(cut: GpuSample, whole: GpuSample) -> None:
    """Every figure of the cut reading is the whole reading's, or unknown."""
    known = {gpu.index: gpu for gpu in whole.gpus}
    for gpu in cut.gpus:
        for name, value in numbers(gpu).items():
            # errors that add up (ECC) may be told only when all parts are there
            assert value is None or value == getattr(known[gpu.index], name), f"{name} of GPU {gpu.index}: {value}"
        for process in gpu.processes:
            assert process.pid in [one.pid for one in known[gpu.index].processes]


@pytest.mark.parametrize("form", WHOLE)
def test_a_cut_anywhere_never_makes_a_wrong_number(form: str) -> None:
    whole = read_smi(WHOLE[form])
    for end in range(len(WHOLE[form])):
        never_wrong(read_smi(WHOLE[form][:end]), whole)


@given(
    st.sampled_from(sorted(WHOLE)),
    st.lists(st.tuples(st.integers(0, 3000), st.text(max_size=8)), max_size=4),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_damage_never_crashes(form: str, damage: list[tuple[int, str]], data: st.DataObject) -> None:
    text = WHOLE[form]
    for place, junk in damage:
        text = text[:place] + junk + text[place + data.draw(st.integers(0, 20)) :]
    read_smi(text, data.draw(st.sampled_from([0, 1, 6, 9, None])))


@given(st.text(max_size=400), st.one_of(st.none(), st.integers(0, 255)))
@settings(max_examples=300, deadline=None)
def test_anything_gives_a_sample(text: str, code: int | None) -> None:
    sample = read_smi(text, code)
    assert sample.gpus or sample.findings or sample.driver or sample.cuda


# -------------------------------------------------------------------------------------------------- the shared cases


def case_ids() -> list[str]:
    return sorted(folder.name for folder in CASES.iterdir()) if CASES.is_dir() else []


def read_case(name: str) -> tuple[GpuSample, dict[str, Any], str]:
    case = yaml.safe_load((CASES / name / "expect.yaml").read_text())
    text = (CASES / name / "output.txt").read_text()
    columns = re.search(r"--query-gpu=(\S+)", case["command"])
    fields = columns[1].split(",") if columns and "noheader" in case["command"] else None
    code = case["exit_code"] if case["exit_code"] is not None or not text.strip() else 0
    return read_smi(text, code, fields=fields), case["expect"], text


ERRORS = {"driver_mismatch": "driver-mismatch", "no_devices": "no-devices", "driver_not_loaded": "driver-not-loaded"}


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not on this machine")
@pytest.mark.parametrize("name", case_ids())
def test_shared_case(name: str) -> None:
    sample, expect, _ = read_case(name)
    found = [id for id, _ in ids(sample)]
    first = sample.gpus[0] if sample.gpus else None
    for key, value in expect.items():
        match key:
            case "gpus":
                assert len(sample.gpus) == value
            case "name":
                assert all(gpu.name == value for gpu in sample.gpus)
            case "memory_total_mib":
                assert all(gpu.memory_total == value * MIB for gpu in sample.gpus)
            case "memory_total":
                assert first is not None
                assert first.memory_total is value
                assert "unified-memory" in found
            case "driver":
                assert sample.driver
                assert str(value).startswith(sample.driver)
            case "compute_cap":
                assert all(gpu.capability == tuple(map(int, value.split("."))) for gpu in sample.gpus)
            case "utilization":
                assert first is not None
                assert first.utilisation == (None if isinstance(value, str) else value)
            case "power_w":
                assert first is not None
                assert first.power == value
            case "mig":
                assert first is not None
                assert first.mig is True
                assert "mig" in found
            case "error":
                assert found == [ERRORS[value]]
            case "lost_gpu_index":
                assert [gpu.index for gpu in sample.gpus if gpu.lost] == [value]
            case "lost_bus_id":
                assert any(value in item.text for item in sample.findings if item.id == "gpu-lost")
            case "visible_indices":
                assert [gpu.index for gpu in sample.gpus if not gpu.lost] == value
            case "bus_ids":
                told = [item.text for item in sample.findings if item.id == "gpu-lost"]
                assert all(bus in line for bus, line in zip(value, told, strict=True))
            case "index_only_in_third":
                assert [item.gpu for item in sample.findings if item.id == "gpu-lost"] == [None, None, value]
            case "needs_reset":
                assert "remap-pending" in found
            case "timeout_needed":
                assert found == ["smi-wedged"]
            case "ecc_block":
                assert all(gpu.ecc_uncorrected == 0 for gpu in sample.gpus)
            case "power_element":
                assert first is not None
                assert (first.power, first.power_limit) == (26.84, 450.0)


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not on this machine")
@pytest.mark.parametrize("name", case_ids())
def test_shared_case_cut_anywhere(name: str) -> None:
    whole, _, text = read_case(name)
    for end in range(0, len(text), max(1, len(text) // 200)):
        never_wrong(read_smi(text[:end]), whole)
