#!/usr/bin/env python3
"""Holds `sinkgrad convert --to torch` to PyTorch: loads the exported weights of a translator into nn.Transformer with strict=True, translates greedily with
it and compares every sentence with `sinkgrad translate --beam 1` of the same checkpoint. Exits with 1 where a sentence differs.

  sinkgrad train number_words_small --set model.iterations=1 --out RUN
  sinkgrad convert RUN/last.safetensors weights.npz --to torch
  sinkgrad translate RUN/last.safetensors --beam 1 <sentences >translations
  convert_torch.py --run RUN --weights weights.npz --sentences sentences --translations translations
"""
import argparse
import json
import math
import pathlib
import sys

import numpy
import torch
from torch import nn

PADDING, END, UNKNOWN = 1, 2, 3


def dictionary(path):
    """The words by number: the special ones, then those of a file with "word count" on each line."""
    return ["<s>", "<pad>", "</s>", "<unk>"] + [line.rsplit(" ", 1)[0] for line in path.read_text().splitlines()]


def positions(count, dim):
    """fairseq's table: sines, then cosines; the first word's position is padding + 1."""
    frequencies = torch.exp(torch.arange(dim // 2, dtype=torch.float64) * -(math.log(1e4) / (dim // 2 - 1)))
    angles = torch.arange(PADDING + 1, PADDING + 1 + count, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1).float()


class Translator(nn.Module):
    def __init__(self, model, weights):
        super().__init__()
        dim, heads, mlp = model["dim"], model["heads"], model["mlp_dim"]
        options = dict(d_model=dim, nhead=heads, dim_feedforward=mlp, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), model["encoder_layers"], enable_nested_tensor=False)
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), model["decoder_layers"])
        self.transformer = nn.Transformer(dim, heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
        self.source, self.target = weights.pop("encoder.embed_tokens.weight"), weights.pop("decoder.embed_tokens.weight")
        self.transformer.load_state_dict(weights, strict=True)
        self.dim = dim

    def embed(self, table, words):
        return (table[words] * math.sqrt(self.dim) + positions(len(words), self.dim))[None]

    @torch.no_grad()
    def translate(self, source, longest):
        memory, words = self.transformer.encoder(self.embed(self.source, torch.tensor(source))), [END]
        while len(words) <= longest:
            mask = nn.Transformer.generate_square_subsequent_mask(len(words))
            x = self.transformer.decoder(self.embed(self.target, torch.tensor(words)), memory, tgt_mask=mask, tgt_is_causal=True)
            scores = x[0, -1] @ self.target.T
            scores[PADDING] = -math.inf
            if len(words) == 1:
                scores[END] = -math.inf
            words.append(int(scores.argmax()))
            if words[-1] == END:
                break
        return [w for w in words if w != END]


def main():
    parser = argparse.ArgumentParser()
    for option in ("run", "weights", "sentences", "translations"):
        parser.add_argument("--" + option, type=pathlib.Path, required=True)
    a = parser.parse_args()
    torch.set_num_threads(1)
    config = json.loads((a.run / "config.json").read_text())
    if config["model"]["iterations"] != 1:
        sys.exit("nn.Transformer is softmax: the model must have been trained with model.iterations=1")
    german, english = (dictionary(a.run / f"dictionary.{side}.txt") for side in ("source", "target"))
    numbers = {word: i for i, word in enumerate(german)}
    model = Translator(config["model"], {name: torch.from_numpy(w) for name, w in numpy.load(a.weights).items()}).eval()
    sentences, translations = a.sentences.read_text().splitlines(), a.translations.read_text().splitlines()
    different = 0
    for sentence, ours in zip(sentences, translations, strict=True):
        source = [numbers.get(word, UNKNOWN) for word in sentence.split()] + [END]
        longest = round(1.2 * len(source)) + 10  # the search's limit
        theirs = (" ".join(english[w] for w in model.translate(source, longest)) + " ").replace("@@ ", "").strip()
        if theirs != ours:
            different += 1
            print(f"{sentence}\n  sinkgrad {ours}\n  torch    {theirs}")
    print(f"{len(sentences) - different} of {len(sentences)} translations are equal")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
