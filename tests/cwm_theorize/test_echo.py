"""Texts scored by language models: over HTTP, in this process, or by choosing."""

import json
import os
import re
import shutil
import time
from dataclasses import replace
from functools import partial
from math import log

import numpy as np
import pytest

import cwm_cli
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.search.contracts import GENERATE, Message, Move, Request, ScoreRequest
from cwm_cli.search.spending import SPENDING, open_spending, read_spending
from cwm_litellm.backend import LiteLLM, load
from cwm_theorize import choosing
from cwm_theorize.choosing import parse_choice
from cwm_theorize.playground.door import CHANGES, Door, DoorWords
from cwm_theorize.statistician import Statistician, TextTransition
from cwm_theorize.tiny.backend import SHIPPED, Tiny, words_key
from cwm_theorize.tiny.model import TinyModel
from language_server import BOS, Echoes, LanguageServer, Reader, Trigrams
from notes import Notes
from openai_server import WRONG_KEY, OpenAIServer, answer, error, rate_limited

MODEL = "openai/some-local-model"
CORPUS = (
    "The red door opens.\nThe blue door stays closed.\nYou hold the small key.\n"
    "What follows? You hold the red key. The blue door opens.\n"
) * 5
ASKED = (
    Message(role="system", content="You predict."),
    Message(role="user", content="You hold the small key. What follows?"),
)
SENTENCES = ("The red door opens.", "The blue door opens.", "The green door stays closed.")

DOOR = DoorWords(Door(rule="not blue"))


def held(item, change):
    """Return the transition of holding an item in front of the door, with this change."""
    words, facts = DOOR.action(0, item), DOOR.facts(0, item)
    return TextTransition(DOOR.state(0), words, change, CHANGES, facts)


HELD = (held(0, CHANGES[1]), held(6, CHANGES[0]), held(3, CHANGES[1]))


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-very-secret-key")


def asked(*sentences):
    return [ScoreRequest(ASKED, each) for each in sentences or SENTENCES]


def scorer(server, model=MODEL, **options):
    quick = {"api_base": server.url, "timeout": 20, "retries": 2, "backoff": 0.01}
    return LiteLLM(model, **quick | options)


def alone(speaker, prompt, said):
    """Score a text in this process."""
    before, whole = speaker.tokens(prompt), speaker.tokens(prompt + said)
    assert whole[: len(before)] == before
    return speaker.log_probabilities(whole)[len(before) :]


class TestEchoes:
    speaker = Trigrams(CORPUS)
    prompt = "You predict.\n\nYou hold the small key. What follows?\n\n"

    def test_log_probability_over_http_equals_the_one_in_process(self):
        wanted = [alone(self.speaker, self.prompt, f"{each}\n") for each in SENTENCES]
        variants = [
            Echoes(),
            Echoes(nothing=False),
            Echoes(nothing=False, special="</s>"),
            Echoes(offsets=False),
            Echoes(counts=False),
            Echoes(nothing=False, counts=False),
            Echoes(reversed=True),
        ]
        for echoes in variants:
            with LanguageServer(speaker=self.speaker, echoes=echoes) as server:
                names = (MODEL, "hosted_vllm/one", "openai/gpt-4o-mini")
                for model in names if echoes == Echoes() else names[:1]:
                    found = scorer(server, model).score(asked())
                    assert found == [pytest.approx(each, abs=1e-6) for each in wanted], echoes

    def test_start_token_of_server_does_not_shift_scores(self):
        for offsets in (True, False):
            echoes = Echoes(begins=BOS, offsets=offsets)
            with LanguageServer(speaker=self.speaker, echoes=echoes) as server:
                found = scorer(server).score(asked())
            wanted = [alone(self.speaker, BOS + self.prompt, f"{each}\n") for each in SENTENCES]
            assert found == [pytest.approx(each, abs=1e-6) for each in wanted]

    def test_api_base_comes_from_litellm_variables(self, monkeypatch):
        wanted = alone(self.speaker, self.prompt, f"{SENTENCES[0]}\n")
        names = {"HOSTED_VLLM_API_BASE": "hosted_vllm/one", "OPENAI_BASE_URL": "openai/gpt-4o-mini"}
        for name, model in names.items():
            with LanguageServer(speaker=self.speaker) as server:
                monkeypatch.setenv(name, server.url)
                (found,) = LiteLLM(model, retries=0).score(asked(SENTENCES[0]))
                assert found == pytest.approx(wanted, abs=1e-6)
                assert any("messages" in each.body for each in server.requests), "no template asked"

    def test_batches_send_each_prompt_once_and_keep_order(self):
        many = [f"The {each} door opens." for each in range(50)] * 2
        with LanguageServer(speaker=self.speaker) as server:
            model = scorer(server, batch=8, in_flight=3)
            assert model.can_score
            found = model.score(asked(*many))
            sent = [len(prompts) for prompts in server.weighings][1:]
        assert (len(sent), sum(sent), max(sent)) == (7, 50, 8)
        wanted = [alone(self.speaker, self.prompt, f"{each}\n") for each in many]
        assert found == [pytest.approx(each, abs=1e-6) for each in wanted]
        assert model.weighed.prompt_tokens > 50 * 10

    @pytest.mark.parametrize("echo", ["refused", "ignored"])
    def test_server_without_echo_is_detected_once(self, echo):
        with LanguageServer(echoes=Echoes(echo=echo)) as server:
            model = scorer(server)
            assert not model.can_score
            count = len(server.requests)
            assert not model.can_score
            with pytest.raises(CwmError, match="returns no log-probabilities of prompts"):
                model.score(asked())
            assert len(server.requests) == count <= 5

    def test_grammar_forces_server_to_write_the_text(self):
        echoes = Echoes("refused", grammars="obeyed")
        chatml = TestTemplates.chatml
        asks = chatml([*map(Message.model_dump, ASKED)], True)
        for template, prompt in ((None, self.prompt), (chatml, asks)):
            texts = ['He said "no" \\ and\tleft: \u00fc.', *SENTENCES]
            with LanguageServer(speaker=self.speaker, echoes=echoes, template=template) as server:
                found = scorer(server).score(asked(*texts))
                assert {*server.weighings[-1]} == {prompt}
            wanted = [[*alone(self.speaker, prompt, each), -0.5] for each in texts]
            assert found == [pytest.approx(each, abs=1e-6) for each in wanted]
        with LanguageServer(speaker=self.speaker, echoes=Echoes("refused", grammars="masked")) as s:
            assert not scorer(s).can_score, "certain tokens contain no information"

    def test_chat_model_of_provider_gets_no_request(self):
        for model in ("openai/gpt-4o-mini", "anthropic/claude-3-5-haiku-20241022"):
            assert not LiteLLM(model).can_score

    def test_inconsistent_log_probabilities_are_rejected(self):
        nonsense = [
            {"token_logprobs": [None, 0.5, 2.0]},
            {"token_logprobs": [None, float("nan"), -1.0]},
            {"token_logprobs": None},
            {"tokens": None},
            {"tokens": ["a"], "token_logprobs": [-1.0], "text_offset": [0]},
            {"text_offset": [0]},
            None,
        ]
        for change in nonsense:
            with LanguageServer(speaker=self.speaker) as server:
                server.tampered = change
                model = scorer(server)
                assert not model.can_score, change
        with LanguageServer(speaker=self.speaker) as server:
            model = scorer(server)
            assert model.can_score
            for server.tampered in nonsense:
                with pytest.raises(CwmError, match="for this text, but did before"):
                    model.score(asked())

    def test_scoring_failures_read_like_completion_failures(self):
        with LanguageServer(speaker=self.speaker) as server:
            server._weighed = WRONG_KEY
            with pytest.raises(CwmError, match="refused the key: check OPENAI_API_KEY"):
                _ = scorer(server).can_score
        with LanguageServer(speaker=self.speaker) as server:
            model, well = scorer(server), server._weighed
            assert model.can_score
            failures = [error(503, "busy"), error(429, "slow down")]
            server._weighed = lambda handler: (failures.pop() if failures else well)(handler)
            assert len(model.score(asked())) == 3
            assert not failures

    @pytest.mark.slow
    def test_scoring_requests_respect_rate_limits(self, tmp_path, monkeypatch):
        """The expected tokens of a request count until the used tokens are known."""
        place, due, turns = tmp_path / "spending.json", [], []
        open_spending(place, None, lambda: 0.0)
        monkeypatch.setenv(SPENDING, f"file:{place}")
        monkeypatch.setattr(load(), "token_counter", lambda *_, **__: 40_000)
        completes = Request(ASKED, 7, Move(GENERATE), problem=None)
        with LanguageServer([answer("Yes.")], speaker=self.speaker) as server:
            well, failures = server._weighed, [rate_limited("0.8")]

            def behave(handler):
                (rate,) = read_spending(place).providers.values()
                due.append(rate.tokens_due - time.time())
                turns.append(rate.requests_due)
                well(handler)

            server._weighed = behave
            model = scorer(server, requests_per_minute=600, tokens_per_minute=60_000)
            assert model.score(asked())
            model.complete(completes)
            arrived = server.requests[-1].seconds + time.time() - time.monotonic()
            assert arrived >= turns[-1] - 0.01, "at most ten requests per second"
            (rate,) = read_spending(place).providers.values()
            assert min(due) > 30 > rate.tokens_due - time.time()
            server._weighed = lambda handler: (failures.pop() if failures else well)(handler)
            with pytest.raises(CwmError, match="rate limit still exceeded"):
                scorer(server, retries=0, requests_per_minute=600, tokens_per_minute=60_000).score(
                    asked()
                )
            (rate,) = read_spending(place).providers.values()
            assert rate.tokens_due - time.time() < 30, "refused requests count no tokens"
            model.complete(completes)
            refused, completion = [each.seconds for each in server.requests][-2:]
            assert completion - refused >= 0.75, "all requests pause for the retry delay"


class TestTemplates:
    speaker = Trigrams(CORPUS)

    @staticmethod
    def chatml(messages, header):
        said = [f"<|im_start|>{m['role']}\n{m['content'].strip()}<|im_end|>\n" for m in messages]
        return BOS + "".join(said) + ("<|im_start|>assistant\n" if header else "")

    @staticmethod
    def without_system(messages, header):
        if messages[0]["role"] == "system":
            raise ValueError("no system message")
        said = [f"<|{m['role']}|>{m['content']}<|end|>" for m in messages]
        return "".join(said) + ("<|assistant|>" if header else "")

    def test_server_template_formats_scored_text(self):
        with LanguageServer(
            speaker=self.speaker, template=self.chatml, echoes=Echoes(begins=BOS)
        ) as server:
            found = scorer(server).score(asked(SENTENCES[0]))[0]
            sent = server.weighings[-1][0]
        turns = [*map(Message.model_dump, ASKED), {"role": "assistant", "content": SENTENCES[0]}]
        assert sent == self.chatml(turns, False)
        header, end = "<|im_start|>assistant\n", "<|im_end|>\n"
        before = self.chatml(turns[:2], False)
        wanted = alone(self.speaker, before, f"{header}{SENTENCES[0]}{end}")
        assert found == pytest.approx(wanted, abs=1e-6)

    def test_proposal_is_scored_without_turn_markers(self):
        request = Request(ASKED, 7, Move(GENERATE), problem=None)
        with LanguageServer(speaker=self.speaker, template=self.chatml) as server:
            (found,) = scorer(server).score([ScoreRequest(ASKED, SENTENCES[0], request)])
            sent = server.weighings[-1][0]
        before = self.chatml([*map(Message.model_dump, ASKED)], True)
        assert sent == before + SENTENCES[0]
        assert found == pytest.approx(alone(self.speaker, before, SENTENCES[0]), abs=1e-6)

    def test_end_marker_of_template_comes_after_answer(self):
        template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}</s>"
        load()  # load LiteLLM quietly and offline before the next line imports it
        from cwm_litellm.scoring import Format, rendering

        words = rendering(template)
        known = Format.learned(words)
        asks = "<|system|>You predict.<|end|><|user|>You hold the small key. What follows?<|end|>"
        assert known.prompt(ASKED) == asks
        assert known.answer("It opens.") == "<|assistant|>It opens.<|end|></s>"

    def test_template_without_system_role_uses_user_message(self):
        with LanguageServer(speaker=self.speaker, template=self.without_system) as server:
            model = scorer(server)
            assert model.can_score
            model.score(asked(SENTENCES[0]))
            sent = server.weighings[-1][0]
        said = "\n\n".join(message.content for message in ASKED)
        assert sent == f"<|user|>{said}<|end|><|assistant|>{SENTENCES[0]}<|end|>"

    def test_template_option_accepts_jinja_and_tokenizer_json(self, tmp_path):
        text = (
            "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n"
            "{% endfor %}"
        )
        (tmp_path / "template.jinja").write_text(text)
        marks = {"bos_token": BOS, "eos_token": {"content": "</s>"}}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"chat_template": text, **marks}))
        (tmp_path / "broken.jinja").write_text("{% for m in messages %}")
        asks = "[system] You predict.\n[user] You hold the small key. What follows?\n"
        with LanguageServer(speaker=self.speaker) as server:
            for name, end in (("template.jinja", ""), ("tokenizer.json", "</s>")):
                model = scorer(server, template=str(tmp_path / name))
                model.score(asked(SENTENCES[0]))
                wanted = f"{asks}[assistant] {SENTENCES[0]}\n".replace("\n", f"{end}\n")
                begin = BOS if end else ""
                assert server.weighings[-1] == [begin + wanted]
            (tmp_path / "deep.json").write_text("[" * 5000)
            (tmp_path / "list.json").write_text('{"chat_template": []}')
            os.mkfifo(tmp_path / "pipe.jinja")
            for name in ("broken.jinja", "none.jinja", "deep.json", "list.json", "pipe.jinja"):
                with pytest.raises(CwmError, match="is not a chat template"):
                    _ = scorer(server, template=str(tmp_path / name)).can_score


class TestProposals:
    def test_log_probability_of_answer_is_returned_on_request(self):
        behaviour = answer("It is blue.", tokens=[("It is", -0.25), (" blue.", -1.5)])
        request = Request(ASKED, 7, Move(GENERATE), problem=None)
        with OpenAIServer([behaviour]) as server:
            for options in ({}, {"stream": True}):
                model = scorer(server, **options)
                assert model.complete(request).log_probability is None
                assert model.complete(request._replace(weighed=True)).log_probability == -1.75
            with pytest.raises(CwmError, match="for temperature 1"):
                scorer(server, temperature=0.5).complete(request._replace(weighed=True))
        with OpenAIServer([answer("It is blue.")]) as server:
            assert scorer(server).complete(request._replace(weighed=True)).log_probability is None


class TestChoosing:
    @staticmethod
    def votes(listed, body):
        """Answer that doors stay closed for blue items, and open for all others."""
        text = body["messages"][-1]["content"]
        options = {words: number for number, words in re.findall(r"^(\d+)\. (.+)$", text, re.M)}
        listed.append(options)
        action = re.search(r"^Action: (.*)$", text, re.M)[1]
        return options["The door stays closed." if "blue" in action else "The door opens."]

    def test_chat_model_chooses_among_candidates(self):
        said, listed = [], []
        with LanguageServer(partial(self.votes, listed), echoes=Echoes("refused")) as server:
            model = scorer(server)
            chooser = choosing.scoring_backend(model, said.append)
            statistician = Statistician(DOOR, chooser)
            assert statistician.normalises
            found = statistician.of_candidates("", HELD)
            again = statistician.log_likelihoods("", HELD)
        assert said == [
            f"{MODEL} returns no log-probabilities of prompts: it chooses among the candidates, "
            "3 times for each question"
        ]
        likely, unlikely = log(3.5 / 4), log(0.5 / 4)
        assert [each.tolist() for each in found] == [
            pytest.approx(each)
            for each in ([unlikely, likely], [likely, unlikely], [unlikely, likely])
        ]
        assert again.tolist() == pytest.approx([likely] * 3)
        assert (chooser.completions, chooser.weighed.prompt_tokens) == (9, 900)
        assert len({*map(tuple, listed)}) > 1, "the order of the sentences varies"

    def test_answer_names_candidate_by_number_or_full_text(self):
        listed = ["The door opens.", "The door opens. Twice.", "It stays closed."]
        named = {
            "3": 2,
            " 2. The door": 1,
            "**1**": 0,
            "It is blue, and there are 27 items, so 3": 2,
            "It stays closed.": 2,
            "I say: The door opens. Twice.": 1,
            "4": None,
            "none": None,
            "": None,
        }
        assert {answer: parse_choice(answer, listed) for answer in named} == named

    def test_answer_without_candidate_does_not_count(self):
        with LanguageServer([answer("I cannot tell.")], echoes=Echoes("ignored")) as server:
            chooser = choosing.scoring_backend(scorer(server, votes=2), lambda words: None)
            (found,) = Statistician(DOOR, chooser).of_candidates("", HELD[:1])
            assert len(server.requests) < 10
        assert found.tolist() == pytest.approx([log(0.5)] * 2)

    def test_choosing_needs_candidates_and_a_language_model(self):
        endless = HELD[0]._replace(candidates=())
        with LanguageServer(echoes=Echoes("refused")) as server:
            chooser = choosing.scoring_backend(scorer(server), lambda words: None)
            with pytest.raises(CwmError, match="no possible changes to choose from"):
                Statistician(DOOR, chooser).log_likelihoods("", [endless])
            with pytest.raises(CwmError, match="cannot score proposals"):
                chooser.score(asked())
        with pytest.raises(CwmError, match="choose another --statistician"):
            choosing.scoring_backend(find("backend", "induction")(), lambda words: None)


PHI = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
"""A template like the published model's, with a special end marker."""

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system message') }}{% endif %}"
    "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save a small model with random weights and a tokenizer without a template."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("model")
    marks = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([CORPUS], vocab_size=320, special_tokens=marks)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # otherwise, all tokens are equally likely
    model.save_pretrained(folder)
    return folder


@pytest.mark.long
class TestTransformers:
    def templated(self, saved, folder, template):
        import transformers

        shutil.copytree(saved, folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        return folder

    def plainly(self, folder, text, count):
        """Score the last tokens of a text in a separate pass, as published."""
        import torch
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        tokens = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            said = torch.log_softmax(model(tokens).logits[0].double(), -1)
        places = range(tokens.shape[1] - count, tokens.shape[1])
        return [float(said[place - 1, tokens[0, place]]) for place in places]

    @pytest.mark.parametrize("template", [PHI, CHATML, NO_SYSTEM, ""])
    def test_score_equals_published_formula_in_any_batch(self, saved, tmp_path, template):
        import transformers

        folder = self.templated(saved, tmp_path / "model", template) if template else saved
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        others = [ScoreRequest((ASKED[0], Message(role="user", content="Which door?")), "Both.")]
        wanted = []
        for sentence in SENTENCES:
            turns = [message.model_dump() for message in ASKED]
            if template == NO_SYSTEM:
                both = "\n\n".join(message.content for message in ASKED)
                turns = [{"role": "user", "content": both}]
            turns.append({"role": "assistant", "content": sentence})
            if template:
                whole = tokenizer.apply_chat_template(turns, tokenize=False)
                alone = tokenizer.apply_chat_template(turns[-1:], tokenize=False)
                alone = alone.removeprefix("<s>")
            else:
                whole, alone = f"{TestEchoes.prompt}{sentence}\n", f"{sentence}\n"
            count = len(tokenizer(alone, add_special_tokens=False)["input_ids"])
            wanted.append(self.plainly(folder, whole, count))
        many, took = asked() + others, {}
        for batch in (1, 2, 16):
            model = find("backend", "transformers")(model=str(folder), batch=batch)
            found = model.score(many)
            assert found[:3] == [pytest.approx(each, abs=1e-5) for each in wanted], batch
            took[batch] = model.weighed.prompt_tokens
            single = [model.score([each])[0] for each in many]
            assert found == [pytest.approx(each, abs=1e-5) for each in single], batch
        assert took[1] == took[16] < 0.7 * (model.weighed.prompt_tokens - took[16])

    @pytest.mark.parametrize("template", [PHI, CHATML, NO_SYSTEM, ""])
    def test_score_over_http_equals_score_in_process(self, saved, tmp_path, template):
        import jinja2
        import torch
        import transformers

        folder = self.templated(saved, tmp_path / "model", template) if template else saved
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

        class Served:
            def tokens(self, text):
                read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
                return [text[start:end] for start, end in read["offset_mapping"]]

            def log_probabilities(self, tokens):
                read = tokenizer("".join(tokens), add_special_tokens=False, return_tensors="pt")
                numbers = read["input_ids"][0]
                with torch.no_grad():
                    said = torch.log_softmax(model(numbers[None]).logits[0].double(), -1)
                return [None, *said[:-1].gather(-1, numbers[1:, None])[:, 0].tolist()]

        def word(messages, header):
            try:
                return tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=header
                )
            except jinja2.TemplateError as error:
                raise ValueError(str(error)) from None

        here = find("backend", "transformers")(model=str(folder))
        proposal = ScoreRequest(ASKED, "If blue, closed.", Request(ASKED, 7, Move(GENERATE), None))
        with LanguageServer(speaker=Served(), template=word if template else None) as server:
            found = scorer(server).score([*asked(), proposal])
        wanted = here.score([*asked(), proposal])
        assert found == [pytest.approx(each, abs=1e-5) for each in wanted]

    def test_sampled_answer_depends_on_seed_and_has_its_scored_probability(self, saved, tmp_path):
        folder = self.templated(saved, tmp_path / "model", PHI)
        for temperature in (1.0, 0.5):
            model = find("backend", "transformers")(
                model=str(folder), temperature=temperature, max_tokens=20
            )
            request = Request(ASKED, 7, Move(GENERATE), problem=None)
            made, again = model.complete(request), model.complete(request)
            other = model.complete(request._replace(seed=8))
            assert made.text == again.text != other.text
            assert made.log_probability == pytest.approx(again.log_probability)
            assert made.lacking == "the answer was cut off after 20 tokens"
            assert (made.usage.completion_tokens, made.usage.cost) == (20, 0.0)
            short, weighed = replace(model, max_tokens=2), 0
            for seed in range(20):
                said = short.complete(request._replace(seed=seed))
                (found,) = model.score([ScoreRequest(ASKED, said.text, request)])
                if len(found) == 2:  # sampled text may be tokenized in other ways
                    assert sum(found) == pytest.approx(said.log_probability, abs=1e-5)
                    weighed += 1
            assert weighed > 3

    def test_search_keeps_prompts_within_context_length(self, saved, tmp_path):
        import transformers

        folder = self.templated(saved, tmp_path / "model", NO_SYSTEM)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        model.config.max_position_embeddings = 3500
        model.save_pretrained(folder)
        made = cwm_cli.synthesize(
            "CartPole-v1",
            model=f"transformers/{folder}",
            strategy="zero-shot",
            budget=2,
            run=tmp_path / "run",
            options=["max_tokens=40"],
        )
        log = (tmp_path / "run" / "log.txt").read_text()
        assert (made.completions, made.solved, made.cost) == (2, False, 0.0)
        assert "the prompt was too long: shortened from" in log
        assert (
            len(re.findall(r"answered in [\d.]+ s: [\d,]+ tokens of prompt, 40 of answer", log))
            == 2
        )

    def test_invalid_arguments_give_one_line(self, tmp_path):
        pytest.importorskip("transformers")
        with pytest.raises(CwmError, match="no language model is named"):
            find("backend", "transformers")()
        with pytest.raises(CwmError, match="no language model can be read from") as caught:
            find("backend", "transformers")(model=str(tmp_path)).score(asked())
        assert "\n" not in str(caught.value)


def served(model, script=None, **options):
    """Serve the tiny model; its chat answers follow a script."""
    return LanguageServer(script or [answer("none")], speaker=Reader(model), **options)


@pytest.fixture(scope="module")
def weights():
    """The included tiny model for the door."""
    return SHIPPED / f"{words_key(DOOR)}.npz"


RULES = [
    f"If {fact}, then closed.\nOtherwise, opened."
    for fact in ("colour is blue", "shape is key", "size is large", "colour is not red")
]


class TestTinyModel:
    def test_score_over_http_equals_score_in_process(self, weights):
        every = [held(item, CHANGES[0]) for item in range(0, 27, 2)]
        here = Statistician(DOOR, Tiny(weights=str(weights)))
        with served(TinyModel.load(weights)) as server:
            there = Statistician(DOOR, scorer(server))
            for rules in ("", RULES[0]):
                wanted = np.array(here.of_candidates(rules, every))
                found = np.array(there.of_candidates(rules, every))
                assert np.abs(found - wanted).max() < 1e-5  # the model uses single precision
                assert np.ptp(wanted) > 0.1

    @staticmethod
    def proposed(body):
        """Propose one of the rules, each with the same probability."""
        text = RULES[body["seed"] % len(RULES)]
        return answer(text, tokens=[(text, -log(len(RULES)))])

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("method", "hastings", "echo"),
        [
            ("metropolis", True, "echoed"),
            ("importance", False, "echoed"),
            ("metropolis", False, "refused"),
        ],
    )
    def test_rules_are_found_with_both_roles_on_a_server(
        self, weights, tmp_path, method, hastings, echo
    ):
        listed, heard = [], Notes()

        def script(body):
            chooses = "Which of these follows?" in body["messages"][-1]["content"]
            return TestChoosing.votes(listed, body) if chooses else self.proposed(body)

        with served(TinyModel.load(weights), script, echoes=Echoes(echo)) as server:
            found = cwm_cli.theorize(
                "Door-v0",
                env_args={"rule": "not blue"},
                method=method,
                hastings=hastings,
                model=MODEL,
                api_base=server.url,
                phases=2,
                proposals=2,
                run=tmp_path / "run",
                observer=heard,
            )
        assert found.rules in RULES
        assert found.completions == 4
        assert found.tokens >= 400
        fallback = [words for words in heard.words if "chooses among the candidates" in words]
        assert len(fallback) == (echo == "refused") == bool(listed)

    def test_hastings_needs_probabilities_of_proposals(self, tmp_path):
        with (
            LanguageServer(["x"], echoes=Echoes("refused")) as server,
            pytest.raises(CwmError, match="does not provide: choose another backend"),
        ):
            cwm_cli.theorize(
                "Door-v0",
                hastings=True,
                theorist=MODEL,
                api_base=server.url,
                run=tmp_path / "run",
            )
