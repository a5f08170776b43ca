"""A causal language model: chat formatting, log-probabilities of texts, and sampled answers.

torch and transformers take seconds to import, so this module is imported on first use of a model.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import transformers
from jinja2 import TemplateError

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Completion, Message, Usage
from cwm_cli.search.reading import without_thinking

Asked = tuple[Sequence[Message], str, bool]
"""Messages, the text of an answer, and whether it is scored without the end-of-turn mark."""


Shorter = Callable[[int], tuple[Message, ...]]

MAX_SHORTENINGS = 5


class Read(NamedTuple):
    """The tokens of a conversation, and the positions of the tokens that overlap the answer."""

    tokens: list[int]
    answer: list[int]


class LanguageModel:
    """A model and its tokenizer."""

    def __init__(self, name: str, *, device: str = "cpu", dtype: str = "auto") -> None:
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name)
            self.model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
            self.model.to(device).eval()
        except (OSError, ValueError, RuntimeError, AttributeError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise CwmError(
                f"cannot load a language model from {name} ({lines[0]}): give a folder of the "
                "transformers library, or a model of its hub"
            ) from None

        most = getattr(self.model.config, "max_position_embeddings", None)
        self._context: int | None = most if isinstance(most, int) and most > 0 else None
        self._skips = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def weigh(
        self, asked: Sequence[Asked], *, batch: int, temperature: float = 1.0
    ) -> tuple[list[list[float]], Usage]:
        """Return the log-probability of each token of each answer, and the usage.

        The shared start of prompts with equal messages is read once. Texts of similar length are in
        one batch, where shorter ones are padded on the right, which earlier tokens do not attend
        to. Proposals are scored at the temperature of their sampling.
        """
        start, read = time.perf_counter(), [self._tokens(*each) for each in asked]
        alike: dict[tuple[Message, ...], list[int]] = {}
        for n in sorted(range(len(read)), key=lambda n: len(read[n].tokens)):
            alike.setdefault(tuple(asked[n][0]), []).append(n)
        single = [these[0] for these in alike.values() if len(these) == 1]
        found: list[list[float]] = [[] for _ in read]
        count = 0
        for group in [single, *(these for these in alike.values() if len(these) > 1)]:
            past = None if group is single else self._read_shared_start([read[n] for n in group])
            known = 0 if past is None else past.get_seq_length()
            count += known + sum(len(read[n].tokens) - known for n in group)
            for first in range(0, len(group), batch):
                these = group[first : first + batch]
                heat = [temperature if asked[n][2] else 1.0 for n in these]
                scores = self._log_probabilities([read[n] for n in these], heat, past)
                for n, weights in zip(these, scores, strict=True):
                    found[n] = weights
        return found, Usage(count, 0, 0.0, time.perf_counter() - start)

    def _read_shared_start(self, texts: Sequence[Read]) -> transformers.DynamicCache | None:
        """Read the common start of texts, up to the token before the first answer.

        Returns None if there is no common start, or the model has its own kind of cache.
        """
        shared = min(text.answer[0] - 1 if text.answer else 0 for text in texts)
        first = texts[0].tokens
        for text in texts[1:]:
            pairs = zip(first[:shared], text.tokens, strict=False)
            shared = next((n for n, (one, other) in enumerate(pairs) if one != other), shared)
        if shared < 1:
            return None
        tokens = torch.tensor([first[:shared]], device=self.model.device)
        with torch.inference_mode():
            past = self.model(tokens, use_cache=True).past_key_values
        return past if isinstance(past, transformers.DynamicCache) else None

    def _log_probabilities(
        self,
        texts: Sequence[Read],
        temperatures: Sequence[float],
        past: transformers.DynamicCache | None,
    ) -> list[list[float]]:
        """Return the log-probability of every token of each answer."""
        known = 0 if past is None else past.get_seq_length()
        longest = max(len(text.tokens) for text in texts) - known
        begins = min((text.answer[0] for text in texts if text.answer), default=longest) - known
        tokens = torch.zeros(len(texts), longest, dtype=torch.long)
        there = torch.zeros(len(texts), known + longest, dtype=torch.long)
        for row, text in enumerate(texts):
            tokens[row, : len(text.tokens) - known] = torch.tensor(text.tokens[known:])
            there[row, : len(text.tokens)] = 1
        device = self.model.device
        tokens, settings = tokens.to(device), {"attention_mask": there.to(device)}
        if past is not None:
            settings["past_key_values"] = copy.deepcopy(past)  # the forward pass extends it
            settings["past_key_values"].batch_repeat_interleave(len(texts))
        if self._skips:  # logits of all prompt tokens would need much memory
            settings["logits_to_keep"] = torch.arange(begins - 1, longest, device=device)
        with torch.inference_mode():
            logits = self.model(tokens, use_cache=past is not None, **settings).logits
            logits = logits[:, 0 if self._skips else begins - 1 :][:, :-1]
            divided = logits.float() / torch.tensor(temperatures, device=device)[:, None, None]
            chosen = (
                torch.log_softmax(divided, -1).gather(-1, tokens[:, begins:, None])[..., 0].cpu()
            )
        return [
            [float(row[place - known - begins]) for place in text.answer]
            for row, text in zip(chosen, texts, strict=True)
        ]

    def answer(
        self,
        messages: Sequence[Message],
        *,
        seed: int,
        temperature: float,
        most: int,
        shorter: Shorter | None = None,
    ) -> Completion:
        """Sample an answer; its log-probability leaves out the mark that ends it.

        A prompt that exceeds the context is replaced by a `shorter` one. Written reasoning before
        the answer is removed.
        """
        start, device = time.perf_counter(), self.model.device
        # tokens that a prompt leaves for an answer: fewer are not enough for a program
        min_answer_tokens = 256
        tokens, note = self._fitting(messages, shorter, min(most, min_answer_tokens))
        if self._context:
            most = min(most, self._context - tokens["input_ids"].shape[1])
        ends = {*_numbers(self.model.generation_config.eos_token_id), self.tokenizer.eos_token_id}
        ends.discard(None)
        settings = transformers.GenerationConfig(
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=most,
            eos_token_id=sorted(ends) or None,
            pad_token_id=min(ends, default=0),
            return_dict_in_generate=True,
            output_scores=True,
        )
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            made = self.model.generate(
                **{name: tokens[name].to(device) for name in ("input_ids", "attention_mask")},
                generation_config=settings,
            )
        before = tokens["input_ids"].shape[1]
        generated = made.sequences[0, before:].tolist()
        likely = [
            float(torch.log_softmax(scores[0].double(), -1)[token])
            for token, scores in zip(generated, made.scores, strict=True)
            if token not in ends
        ]
        text = self.tokenizer.decode(generated, skip_special_tokens=True)
        spoken = without_thinking(text)
        lacking = "" if spoken.done else "the model returned reasoning, but no answer"
        if generated[-1] not in ends:
            where = "" if spoken.done else " of thinking"
            lacking = f"the answer was cut off after {len(generated):,} tokens{where}"
        return Completion(
            spoken.text,
            Usage(before, len(generated), 0.0, time.perf_counter() - start),
            lacking=lacking,
            note=note,
            log_probability=sum(likely) if spoken.text == text else None,
        )

    def _fitting(
        self, messages: Sequence[Message], shorter: Shorter | None, answer: int
    ) -> tuple[Any, str]:
        """Return the tokens of a prompt with room for an answer, and a note on shortening."""
        size, prompt = _size(messages), messages
        # share of the estimated characters to keep, because the tokens per character vary
        shortening = 0.95
        for _ in range(MAX_SHORTENINGS):
            asked = self._prompt(prompt)
            tokens = self.tokenizer(asked, add_special_tokens=self._plain, return_tensors="pt")
            count = tokens["input_ids"].shape[1]
            room = (self._context or count + answer) - answer
            if count <= room:
                words = f"shortened from {size:,} to {_size(prompt):,} characters, examples first"
                return tokens, "" if prompt is messages else f"the prompt was too long: {words}"
            if shorter is None or room <= 0:
                break
            prompt = shorter(int(shortening * _size(prompt) * room / count))
        raise CwmError(
            f"the prompt is too long for a context of {self._context:,} tokens, even when it is "
            "shortened: choose a model with a longer one"
        )

    @property
    def _plain(self) -> bool:
        """Whether the tokenizer has no chat template."""
        return not self.tokenizer.chat_template

    def _tokens(self, messages: Sequence[Message], text: str, bare: bool) -> Read:
        """Return the tokens of a conversation, and the positions of the scored ones."""
        if bare:
            whole = self._prompt(messages) + text
            begins = len(whole) - len(text)
        else:
            whole, begins = self._answered(messages, text)
        read = self.tokenizer(whole, add_special_tokens=self._plain, return_offsets_mapping=True)
        places = [n for n, (_, end) in enumerate(read["offset_mapping"]) if end > begins]
        return Read(read["input_ids"], places)

    def _answered(self, messages: Sequence[Message], text: str) -> tuple[str, int]:
        """Return a conversation with its answer, and the start of the answer's turn.

        This is the end of the conversation without the answer. If a template ends that with a mark
        of its own, the start follows from the length of the turn alone.
        """
        if self._plain:
            asked = self._prompt(messages)
            return f"{asked}{text.strip()}\n", len(asked)
        turns = _turns(messages)
        answer = {"role": "assistant", "content": text}
        try:
            asked, whole = self._format(turns), self._format([*turns, answer])
        except TemplateError:  # some templates have no system message
            turns = _turns(messages, whole=True)
            asked, whole = self._format(turns), self._format([*turns, answer])
        if whole.startswith(asked):
            return whole, len(asked)
        alone = self._format([answer]).removeprefix(self.tokenizer.bos_token or "")
        return whole, len(whole) - len(alone)

    def _prompt(self, messages: Sequence[Message]) -> str:
        """Format a conversation up to the start of an answer."""
        if self._plain:
            return "".join(f"{message.content.strip()}\n\n" for message in messages)
        try:
            return self._format(_turns(messages), header=True)
        except TemplateError:
            return self._format(_turns(messages, whole=True), header=True)

    def _format(self, turns: list[dict[str, str]], *, header: bool = False) -> str:
        """Format turns with the chat template."""
        return str(
            self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=header)
        )


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _turns(messages: Sequence[Message], *, whole: bool = False) -> list[dict[str, str]]:
    """Return messages for a chat template, or as one user message if `whole`."""
    if whole:
        text = "\n\n".join(message.content for message in messages)
        return [{"role": "user", "content": text}]
    return [message.model_dump() for message in messages]


def _numbers(found: Any) -> list[int]:
    """Return a list of zero, one or several numbers."""
    if found is None:
        return []
    return list(found) if isinstance(found, (list, tuple)) else [found]
