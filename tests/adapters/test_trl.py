"""The sandbox as TRL's environment: as TRL drives it, and one step of GRPO on a random model."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.adapters.episode import draw_world
from evaluation.adapters.trl_environment import ledger_metrics, prompt_of, sandbox_environment
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.contracts import FAULTS
from exactlyonce_env.sandbox.session import Session
from exactlyonce_env.sandbox.tasks import make_task

NEEDS = "the extra trl is not installed"
TASK = "invoice_batch"
WORLD = {"task": TASK, "instance": 0, "write": "charge_0", "fault": "timeout_post"}
DONE = {"status": "completed", "summary": "done"}


def steps(first_sends: int) -> list[tuple[str, dict[str, Any]]]:
    """The calls that do the task, the first write so many times, and claim completion."""
    first, *rest = [(s.tool, dict(s.arguments)) for s in make_task(TASK, 0).steps]
    return [first] * first_sends + rest + [("finish", DONE)]


def play(first_sends: int, **row: Any) -> Any:
    environment = sandbox_environment()()
    environment.reset(**WORLD | row)
    for name, arguments in steps(first_sends):
        getattr(environment, name)(**arguments)
    return environment


# -- as TRL drives it, without TRL -----------------------------------------------------------------


def test_the_reward_is_the_ledgers() -> None:
    assert play(1).get_reward() == 1.0
    assert play(2).get_reward() == pytest.approx(-1.2)
    left = sandbox_environment(reward="exactly-once")()
    left.reset(**WORLD)
    assert left.get_reward() == 0.0


def test_an_instance_is_used_again() -> None:
    environment = play(2)
    environment.get_reward()
    told = environment.reset(**WORLD, prompt=[])
    assert told == Session(TASK, write="charge_0").instructions
    for name, arguments in steps(1):
        getattr(environment, name)(**arguments)
    assert environment.get_reward() == 1.0


def test_a_row_is_a_world_for_its_whole_group() -> None:
    kind = sandbox_environment()
    first, second = kind(), kind()
    assert first.reset(seed=11, task=None) == second.reset(seed=11, prompt=[])
    assert first._episode.world == second._episode.world == draw_world(WORLD_FIELDS, 11)


WORLD_FIELDS = {"contract": "native", "docs": "default", "wrapper": "none"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "a row needs a seed"),
        ({"task": TASK}, "a row needs a seed"),
        ({"seed": 1, "fualt": "timeout_late"}, "'fualt' is no field of a world"),
        ({"seed": 1, "contract": "keys-everywhere"}, "sandbox_environment"),
        ({"seed": 1, "fault": "late"}, "unknown fault"),
    ],
)
def test_bad_rows_are_refused(row: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        sandbox_environment()().reset(**row)


def test_columns_for_something_else() -> None:
    sandbox_environment(ignore=("difficulty",))().reset(seed=1, difficulty="hard", prompt=[])


def test_unknown_names_are_refused() -> None:
    for bad in ({"reward": "half"}, {"contract": "none"}, {"docs": "all"}, {"wrapper": "wall"}):
        with pytest.raises(UserError):
            sandbox_environment(**bad)
    with pytest.raises(UserError, match="call reset first"):
        sandbox_environment()().get_reward()
    with pytest.raises(UserError, match="vanilla, aware"):
        prompt_of("reflect")


def test_wrong_calls_are_answered_and_counted() -> None:
    environment = sandbox_environment()()
    environment.reset(**WORLD)
    assert environment.wait(minutes=5).startswith("HTTP 400: ")
    assert environment.wait(seconds="soon").startswith("HTTP 400: ")
    assert environment._episode.n_calls == 2


def test_an_optional_argument_may_be_none() -> None:
    environment = sandbox_environment()()
    environment.reset(**WORLD | {"fault": "ok"})
    name, arguments = steps(1)[0]
    assert json.loads(getattr(environment, name)(**arguments, idempotency_key=None))["ok"] is True
    assert environment.finish(**DONE, uncertain_operations=None) == '{"ok": true}'


def test_nothing_of_the_truth_is_told() -> None:
    kind = sandbox_environment()
    environment = kind()
    name, arguments = steps(1)[0]
    told = {}
    for fault in ("timeout_pre", "timeout_post", "timeout_late"):
        words = [environment.reset(**WORLD | {"fault": fault})]
        told[fault] = [*words, getattr(environment, name)(**arguments)]
    assert len({json.dumps(words) for words in told.values()}) == 1
    seen = json.dumps(told["timeout_post"]) + "".join(m.__doc__ or "" for m in public(kind))
    assert not [name for name in FAULTS if f" {name} " in seen]
    assert "charge_0" not in seen


def test_the_measures_are_logged_without_being_a_reward() -> None:
    logged: dict[str, float] = {}
    batch = [play(1), play(2)]
    assert ledger_metrics(batch, logged.__setitem__, prompts=[], completions=[]) == [None, None]
    assert logged["ledger/exactly_once"] == 0.5
    assert logged["ledger/duplicates"] == 0.5
    assert ledger_metrics(batch) == [None, None]


def public(kind: type) -> list[Any]:
    """The methods that TRL takes for tools, found as it finds them."""
    return [
        member
        for name, member in inspect.getmembers(kind, predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    ]


def test_the_public_methods_are_the_tools() -> None:
    for contract in ("native", "keys-everywhere"):
        tools = Session(TASK, contract=contract).tools
        kind = sandbox_environment(contract=contract)
        assert {m.__name__ for m in public(kind)} == {tool.name for tool in tools}


# -- inside TRL ------------------------------------------------------------------------------------


def test_transformers_reads_the_same_schemas() -> None:
    utils = pytest.importorskip("transformers.utils", reason=NEEDS)
    environment = sandbox_environment()()
    for tool in Session(TASK).tools:
        found = utils.get_json_schema(getattr(environment, tool.name))["function"]
        assert found["name"] == tool.name
        assert found["description"] == tool.description
        wanted = tool.input_schema
        assert found["parameters"].get("required", []) == wanted["required"]
        assert found["parameters"]["properties"].keys() == wanted["properties"].keys()
        for name, schema in wanted["properties"].items():
            got = found["parameters"]["properties"][name]
            for word in ("type", "description", "enum"):
                assert got.get(word) == schema.get(word), (tool.name, name)


def make_tokenizer(text: str) -> Any:
    """A small tokenizer, trained on what it will be asked to write."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    from trl import chat_template_utils

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text],
        trainers.BpeTrainer(
            vocab_size=2000,
            special_tokens=special,
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    templates = Path(chat_template_utils.__file__).parent / "chat_templates"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=(templates / "qwen3.jinja").read_text(),
    )


def make_trainer(folder: Path, kind: type, **options: Any) -> Any:
    """A trainer of a random model with one row, whose two rollouts are a group."""
    torch = pytest.importorskip("torch", reason=NEEDS)
    pytest.importorskip("trl", reason=NEEDS)
    from datasets import Dataset
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = "".join(str(method.__doc__) for method in public(kind)) + json.dumps(steps(2))
    tokenizer = make_tokenizer(words)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=32768,
        )
    )

    class Scripted(GRPOTrainer):  # type: ignore[misc]
        """Says what the script says in place of what the model would."""

        script: Any = None

        def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **more: Any) -> Any:
            if self.script is None:
                return super()._generate_single_turn(prompt_ids, *rest, **more)
            told = [tokenizer.decode(ids) for ids in prompt_ids]
            said = [self.script(k, text) + "<|im_end|>" for k, text in enumerate(told)]
            return [tokenizer(text)["input_ids"] for text in said], None

    return Scripted(
        model=model,
        processing_class=tokenizer,
        reward_funcs=ledger_metrics,
        train_dataset=Dataset.from_list([{"prompt": prompt_of(), **WORLD}]),
        environment_factory=kind,
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=2,
            num_generations=2,
            max_tool_calling_iterations=40,
            learning_rate=0.1,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            **options,
        ),
    )


def test_one_step_on_scripted_rollouts(tmp_path: Path) -> None:
    """A sound rollout and a blind repeat make a group: TRL calls the tools and rewards each."""
    trainer = make_trainer(tmp_path, sandbox_environment(), max_completion_length=8192)
    marks = ("plan A", "plan B")

    def script(k: int, text: str) -> str:
        """The next call of a rollout; the first turn says which plan it follows."""
        mark = next((m for m in marks if m in text), marks[k])
        calls = steps(1 + marks.index(mark))
        made = text.count("<tool_response>")
        if made == len(calls):
            return "That is all."
        name, arguments = calls[made]
        call = json.dumps({"name": name, "arguments": arguments})
        return f"{mark}\n<tool_call>\n{call}\n</tool_call>"

    trainer.script = script
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert logged["rewards/SandboxEnvironment/mean"] == pytest.approx((1.0 - 1.2) / 2)
    assert logged["reward"] == pytest.approx(-0.1)
    assert logged["ledger/exactly_once"] == 0.5
    assert logged["ledger/steps"] == 4.5
    assert logged["tools/failure_frequency"] == 0.0
    after = list(trainer.model.parameters())
    assert any(not a.equal(b) for a, b in zip(before, after, strict=True))


def test_one_step_of_a_random_model(tmp_path: Path) -> None:
    """It calls nothing sensible: every effect is missing, and the episode is left unresolved."""
    trainer = make_trainer(tmp_path, sandbox_environment(), max_completion_length=8)
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert logged["reward"] == pytest.approx(-3 * 0.5 - 0.3)
    assert logged["ledger/unresolved"] == 1.0
