"""Three public measured files in their own odd formats; skipped where the folder is absent."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.measured import DelayFileOptions, DelayFit, fit_delays, read_delays

FOLDER = Path(
    os.environ.get("EXACTLYONCE_DELAY_DATA", Path(__file__).parents[2] / "../shared/data/delays")
)

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the measured files are not here")


def fitted(name: str, options: DelayFileOptions) -> DelayFit:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return fit_delays(read_delays(path, options))


def test_response_times_of_many_clients_and_services() -> None:
    name = "wsdream_rtMatrix.txt"
    with pytest.raises(UserError, match=r"500 numeric columns: 1, 2, .*--column all"):
        fitted(name, DelayFileOptions())
    fit = fitted(name, DelayFileOptions(column="all", unit="s"))
    cells = np.loadtxt(FOLDER / name)
    assert fit.measured.n == cells.size == 150_000
    assert fit.to_json()["quantiles"]["0.5"]["value_s"] == np.quantile(
        cells, 0.5, method="inverted_cdf"
    )
    assert fit.curve.cdf[-1] == 1.0
    assert len(fit.law().times_s) <= 4096
    warned = " ".join(fit.warnings)
    for words in ("just below 20 s", "columns explain", "not every quantile"):
        assert words in warned


def test_cold_and_warm_starts_with_a_function_timeout() -> None:
    name = "lambda_coldstart_2017.csv"
    silent = fitted(name, DelayFileOptions(unit="ms"))
    assert silent.measured.censored == 0
    assert any("say --censored-at 6000" in warning for warning in silent.warnings)
    assumed = fitted(name, DelayFileOptions())
    assert any("say --unit ms" in warning for warning in assumed.warnings)
    fit = fitted(name, DelayFileOptions(unit="ms", censored_at=6000.0))
    assert (fit.measured.n, fit.measured.censored) == (26_824, 2)
    assert fit.to_json()["quantiles"]["0.5"]["value_s"] == 0.00233
    assert fit.curve.last_observed_s == 6.0
    assert fit.landed(5.9).value == fit.curve.cdf[-1] < 1.0
    assert fit.landed(6.1).value is None
    assert any(warning.startswith("no family fits") for warning in fit.warnings)
    cold = fitted(name, DelayFileOptions(unit="ms", where=("1=*csharp*1024",)))
    assert 0 < cold.measured.n < 1_000


def test_a_workbook_in_which_zero_means_no_request() -> None:
    name = "gcp_functions_coldstart.xlsx"
    with pytest.raises(UserError, match=r"6 numeric columns: 2 .Hour."):
        fitted(name, DelayFileOptions())
    with pytest.raises(UserError, match="1080 values of column 'Latency' are zero"):
        fitted(name, DelayFileOptions(column="Latency"))
    fit = fitted(name, DelayFileOptions(column="Latency", unit="ms", drop_markers=("0",)))
    assert fit.measured.n == 1728 - 1080
    assert (fit.curve.times_s[0], fit.curve.times_s[-1]) == (0.018, 1.203)
