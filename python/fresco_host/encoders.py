"""Text encoders of the engine as packs see them: `clip.cond_stage_model` and `clip.tokenizer`. The classes have the host's
names, so that packs can ask of which kind an encoder is; the networks run in the engine."""

from . import Unsupported, models

# The host calls the networks of CLIP by one letter where it lists tokens.
SHORT = {"clip_l": "l", "clip_g": "g", "clip_h": "h"}
LONG = {short: name for name, short in SHORT.items()}


def short(name):
    return SHORT.get(name, name)


def info(clip):
    """Facts about an encoder: its kind, and of each of its networks."""
    if "_fresco_encoder" not in clip.__dict__:
        clip._fresco_encoder = models.method("clip.info", clip=clip)
    return clip._fresco_encoder


def _own(cls):
    """An object of a class that packs cannot make themselves."""
    return object.__new__(cls)


class _OfEngine:
    """What is inside of an encoder can be asked and called. Where a pack replaces a part, the engine would not see it: the
    encoder then says so when it is used."""

    def __init__(self, *args, **kwargs):
        raise Unsupported(
            f"{type(self).__module__}.{type(self).__name__} needs a torch model inside the worker (level L3b); text encoders are "
            "loaded with comfy.sd.load_clip"
        )

    def __setattr__(self, name, value):
        if not name.startswith("_"):
            self._clip._fresco_patched.append(f"{type(self).__name__}.{name} = ...")
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError(f"{type(self).__name__} is held by Fresco and cannot be pickled")

    def _start(self, **parts):
        for name, value in parts.items():
            object.__setattr__(self, name, value)


def gen_empty_tokens(special_tokens, length):
    """What an empty prompt consists of."""
    tokens = [special_tokens[name] for name in ("start", "end") if special_tokens.get(name) is not None]
    return tokens + [special_tokens.get("pad")] * (length - len(tokens))


class ClipTokenWeightEncoder(_OfEngine):
    """One network, which takes tokens with weights."""

    def encode_token_weights(self, token_weight_pairs):
        chunks = [[_pair(place) for place in chunk] for chunk in token_weight_pairs]
        if not chunks:
            # A prompt of no chunk is an empty one.
            chunks = [[[token, 1.0] for token in self.gen_empty_tokens(self.special_tokens, self._empty_length())]]
        options = self._options()
        layer = [options["layer"]] if "layer" in options else [None]
        made = models.method(
            "clip.encode_alone", clip=self._clip, network=self._name, tokens=chunks, layer=layer,
            projected=options.get("projected_pooled"),
        )
        return made["cond"], made.get("pooled_output")


class SDClipModel(ClipTokenWeightEncoder):
    """A network of an encoder."""

    def _of(self, clip, facts):
        self._start(
            _clip=clip, _name=facts["name"], max_length=facts["most"] or 99999999, layer_idx=None, layer="last",
            special_tokens={"start": facts["start"], "end": facts["end"], "pad": facts["pad"]},
            return_projected_pooled=facts["projected"], enable_attention_masks=False, zero_out_masked=False,
        )
        return self

    def _options(self):
        return self._clip._fresco_stage.setdefault(self._name, {})

    def _empty_length(self):
        return self.max_length if self.max_length < 99999999 else 1

    gen_empty_tokens = staticmethod(gen_empty_tokens)

    def set_clip_options(self, options):
        self._options().update({name: value for name, value in options.items() if name in ("layer", "projected_pooled")})

    def reset_clip_options(self):
        self._clip._fresco_stage.pop(self._name, None)

    def clip_layer(self, layer_idx):
        self.set_clip_options({"layer": layer_idx})

    def encode(self, tokens):
        """Each row of tokens by itself: `(rows, length, width)`, and one vector a row."""
        import torch

        made = [self.encode_token_weights([[(token, 1.0) for token in row]]) for row in tokens]
        pooled = [vector for _, vector in made if vector is not None]
        return torch.cat([cond for cond, _ in made]), torch.cat(pooled) if len(pooled) == len(made) else None

    forward = __call__ = encode


class _Stage(_OfEngine):
    """A whole encoder."""

    def _of(self, clip, facts):
        parts = facts["parts"]
        present = [part for part in parts if part["present"]]
        first = (present or parts)[0]["name"]
        made = {part["name"]: _part(part["name"], 0)._of(clip, part) if part["present"] else None for part in parts}
        self._start(_clip=clip, fresco_patcher=clip, clip=first, clip_name=short(first), **made)
        return self

    def _parts(self):
        return [part for part in vars(self).values() if isinstance(part, SDClipModel)]

    def set_clip_options(self, options):
        for part in self._parts():
            part.set_clip_options(options)

    def reset_clip_options(self):
        for part in self._parts():
            part.reset_clip_options()

    def clip_layer(self, layer_idx):
        self.set_clip_options({"layer": layer_idx})

    def encode_token_weights(self, token_weight_pairs):
        """Tokens of every network, as `clip.tokenize` gives them: the encoding, one vector, and what else there is."""
        layers = {part._options().get("layer") for part in self._parts()}
        layer = layers.pop() if len(layers) == 1 else None
        tokens = {LONG.get(name, name): [[_pair(place) for place in chunk] for chunk in chunks] for name, chunks in token_weight_pairs.items()}
        made = models.method("clip.encode", clip=self._clip, tokens=tokens, layer=[layer], plain=True)
        extra = {name: value for name, value in made.items() if name not in ("cond", "pooled_output")}
        out = (made["cond"], made.get("pooled_output"))
        return (*out, extra) if extra else out

    def state_dict(self):
        return models.LazyWeights(self._clip)

    def load_sd(self, sd):
        raise Unsupported("cond_stage_model.load_sd: weights of a text encoder are changed with clip.add_patches in Fresco")


def _pair(place):
    return [place[0], float(place[1])]


# Tokenizers


class _Words:
    """The words of a network, as the transformers library has a tokenizer."""

    def __init__(self, owner):
        self._owner = owner
        self._words = None

    def _spellings(self):
        if self._words is None:
            self._words = models.method("clip.words", clip=self._owner._clip, network=self._owner.embedding_key)
        return self._words

    def get_vocab(self):
        return {word: number for number, word in enumerate(self._spellings())}

    vocab_size = property(lambda self: len(self._spellings()))

    def __len__(self):
        return self.vocab_size

    def encode(self, text, add_special_tokens=True):
        owner = self._owner
        ids = list(models.method("clip.numbers", clip=owner._clip, network=owner.embedding_key, text=text))
        if not add_special_tokens:
            return ids
        return [token for token in (owner.start_token,) if token is not None] + ids + [token for token in (owner.end_token,) if token is not None]

    def __call__(self, text, add_special_tokens=True, **_):
        if isinstance(text, (list, tuple)):
            return {"input_ids": [self.encode(one, add_special_tokens) for one in text]}
        return {"input_ids": self.encode(text, add_special_tokens)}

    def tokenize(self, text, **_):
        return self.convert_ids_to_tokens(self.encode(text, False))

    def convert_ids_to_tokens(self, ids):
        words = self._spellings()
        return words[ids] if isinstance(ids, int) else [words[number] for number in ids]

    def convert_tokens_to_ids(self, tokens):
        known = self.get_vocab()
        return known[tokens] if isinstance(tokens, str) else [known[token] for token in tokens]

    def decode(self, ids, skip_special_tokens=False, **_):
        owner = self._owner
        marks = {owner.start_token, owner.end_token, owner.pad_token} if skip_special_tokens else set()
        text = "".join(self.convert_ids_to_tokens([number for number in ids if number not in marks]))
        return text.replace("</w>", " ").replace("\u2581", " ").strip()


class SDTokenizer(_OfEngine):
    """The tokenizer of one network."""

    def _of(self, clip, facts):
        import folder_paths

        pad, end = facts["pad"], facts["end"]
        self._start(
            _clip=clip, max_length=facts["most"] or 99999999, min_length=facts["least"] if facts["least"] > 1 else None, min_padding=None,
            start_token=facts["start"], end_token=end, pad_token=pad, pad_with_end=pad == end, pad_to_max_length=facts["fill"],
            tokens_start=0 if facts["start"] is None else 1, embedding_key=facts["name"], embedding_size=facts["width"],
            embedding_identifier="embedding:", max_word_length=8, disable_weights=not facts["weighted"],
            embedding_directory=folder_paths.get_folder_paths("embeddings"),
        )
        self._start(tokenizer=_Words(self))
        return self

    @property
    def inv_vocab(self):
        return dict(enumerate(self.tokenizer._spellings()))

    def tokenize_with_weights(self, text, return_word_ids=False, **kwargs):
        return models.tokens_of(self._clip, text, return_word_ids)[short(self.embedding_key)]

    def untokenize(self, token_weight_pair):
        words = self.tokenizer._spellings()
        return [(place, words[place[0]] if isinstance(place[0], int) else None) for place in token_weight_pair]

    def state_dict(self):
        return {}


class _Tokenizers(_OfEngine):
    """The tokenizers of a whole encoder."""

    def _of(self, clip, facts):
        parts = facts["parts"]
        first = parts[0]["name"]
        made = {part["name"]: _part(part["name"], 1)._of(clip, part) for part in parts}
        self._start(_clip=clip, clip=first, clip_name=short(first), **made)
        return self

    def tokenize_with_weights(self, text, return_word_ids=False, **kwargs):
        return models.tokens_of(self._clip, text, return_word_ids)

    def untokenize(self, token_weight_pair):
        return getattr(self, self.clip).untokenize(token_weight_pair)

    def state_dict(self):
        return {}


# Kinds of encoders

_SD1 = "comfy.sd1_clip"
_SDXL = "comfy.sdxl_clip"
_TEXT = "comfy.text_encoders."
# What the engine calls an encoder: module and names of the host's classes, and whether it is one of SD1's kind.
KINDS = {
    "Sd1": (_SD1, "SD1ClipModel", "SD1Tokenizer", True), "Sd2": (_TEXT + "sd2_clip", "SD2ClipModel", "SD2Tokenizer", True),
    "Sdxl": (_SDXL, "SDXLClipModel", "SDXLTokenizer", False),
    "SdxlRefiner": (_SDXL, "SDXLRefinerClipModel", "SDXLTokenizer", True),
    "StableCascade": (_SDXL, "StableCascadeClipModel", "StableCascadeTokenizer", True),
    "Sd3": (_TEXT + "sd3_clip", "SD3ClipModel", "SD3Tokenizer", False),
    "Flux": (_TEXT + "flux", "FluxClipModel", "FluxTokenizer", False),
    "Flux2": (_TEXT + "flux", "Flux2TEModel", "Flux2Tokenizer", True),
    "HunyuanDiT": (_TEXT + "hydit", "HyditModel", "HyditTokenizer", False),
    "AuraFlow": (_TEXT + "aura_t5", "AuraT5Model", "AuraT5Tokenizer", True),
    "Wan": (_TEXT + "wan", "WanT5Model", "WanT5Tokenizer", True),
    "Lumina2": (_TEXT + "lumina2", "LuminaModel", "LuminaTokenizer", True),
    "QwenImage": (_TEXT + "qwen_image", "QwenImageTEModel", "QwenImageTokenizer", True),
    "HunyuanVideo": (_TEXT + "hunyuan_video", "HunyuanVideoClipModel", "HunyuanVideoTokenizer", False),
    "HiDream": (_TEXT + "hidream", "HiDreamTEModel", "HiDreamTokenizer", False),
    "ZImage": (_TEXT + "z_image", "ZImageTEModel", "ZImageTokenizer", True),
}


class SD1ClipModel(_Stage, ClipTokenWeightEncoder):
    """An encoder like that of SD1, whose class the host has for most kinds."""

    encode_token_weights = _Stage.encode_token_weights


class SD1Tokenizer(_Tokenizers):
    """The tokenizers of such an encoder."""


# Networks with a class of their own: module, and the names of the class and of its tokenizer.
PARTS = {
    "clip_g": (_SDXL, "SDXLClipG", "SDXLClipGTokenizer"), "clip_h": (_TEXT + "sd2_clip", "SD2ClipHModel", "SD2ClipHTokenizer"),
    "t5xxl": (_TEXT + "sd3_clip", "T5XXLModel", "T5XXLTokenizer"),
}
_made = {
    (_SD1, "SD1ClipModel"): SD1ClipModel, (_SD1, "SD1Tokenizer"): SD1Tokenizer, (_SD1, "SDClipModel"): SDClipModel,
    (_SD1, "SDTokenizer"): SDTokenizer,
}
_USUAL = (_SD1, "SD1ClipModel", "SD1Tokenizer", True)


for (_module, _name), _cls in _made.items():
    _cls.__module__ = _module
ClipTokenWeightEncoder.__module__ = _SD1


def _class_of(module, name, base):
    """The class of this name, which there is once."""
    if (module, name) not in _made:
        _made[module, name] = type(name, (base,), {"__module__": module})
    return _made[module, name]


def _part(name, which):
    module, *names = PARTS.get(name, (_SD1, "SDClipModel", "SDTokenizer"))
    return _own(_class_of(module, names[which], (SDClipModel, SDTokenizer)[which]))


def names_of(module):
    """All classes of encoders and tokenizers that a module of the host has."""
    found = {}
    for place, model, tokenizer, alike in KINDS.values():
        if place == module:
            found[model] = _class_of(place, model, SD1ClipModel if alike else _Stage)
            found[tokenizer] = _class_of(place, tokenizer, SD1Tokenizer if alike else _Tokenizers)
    for place, model, tokenizer in PARTS.values():
        if place == module:
            found[model], found[tokenizer] = _class_of(place, model, SDClipModel), _class_of(place, tokenizer, SDTokenizer)
    return found


def stage_of(clip):
    """`clip.cond_stage_model`."""
    facts = info(clip)
    module, name, _, alike = KINDS.get(facts["stack"], _USUAL)
    return _own(_class_of(module, name, SD1ClipModel if alike else _Stage))._of(clip, facts)


def tokenizer_of(clip):
    """`clip.tokenizer`."""
    facts = info(clip)
    module, _, name, alike = KINDS.get(facts["stack"], _USUAL)
    return _own(_class_of(module, name, SD1Tokenizer if alike else _Tokenizers))._of(clip, facts)


# Weights in prompts


def escape_important(text):
    return text.replace("\\)", "\0\1").replace("\\(", "\0\2")


def unescape_important(text):
    return text.replace("\0\1", ")").replace("\0\2", "(")


def parse_parentheses(string):
    """The parts of a text: what is in outer brackets, brackets included, and what is between."""
    parts, part, depth = [], "", 0
    for letter in string:
        if letter == "(":
            if depth == 0:
                parts, part = parts + [part] * bool(part), letter
            else:
                part += letter
            depth += 1
        elif letter == ")":
            depth -= 1
            part += letter
            if depth == 0:
                parts, part = [*parts, part], ""
        else:
            part += letter
    return parts + [part] * bool(part)


def token_weights(string, current_weight):
    """Texts with their weights."""
    found = []
    for part in parse_parentheses(string):
        if len(part) < 2 or part[0] != "(" or part[-1] != ")":
            found.append((part, current_weight))
            continue
        part, weight = part[1:-1], current_weight * 1.1
        place = part.rfind(":")
        if place > 0:
            try:
                weight, part = float(part[place + 1 :]), part[:place]
            except ValueError:
                pass
        found.extend(token_weights(part, weight))
    return found

