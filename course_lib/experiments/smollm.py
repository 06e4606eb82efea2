r"""Recorded run of chapter 14 with a model that others have trained: SmolLM2-135M-Instruct, of Llama's architecture.

Read `in_chat_form`, which frames a question as the model's instruction tuning did, and `smollm_writes`, which lets the
model continue a text, answer questions with and without that frame, and compares its logits with Hugging Face's.

The model has 30 blocks, D 576, 9 heads with 3 keys and values, and 134.5 million parameters. The recorded run has its
matrices from a file of 4 bits (`python -m tools.smollm FOLDER`), the hub has them in 16: answers may differ a little.

Source: Allal et al. (2025), "SmolLM2: When Smol Goes Big", arXiv:2502.02737; the model's page,
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct.
"""

import torch

from course_lib.experiments import experiment
from course_lib.generate import generate
from course_lib.llama import Llama
from course_lib.notebook import ledger
from course_lib.utils import huggingface, number_of_parameters

SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"
BEGINNING = "Gravity is"
QUESTIONS = ("What is the capital of France?", "Translate to German: The dog runs.")


def find_smollm():
    """The model's folder on this machine, for `from_pretrained` and `huggingface.tokenizer`; a DataError if none."""
    return huggingface.cached(SMOLLM, "smollm2", "Llama")


def in_chat_form(question):
    """A question as the model's instruction tuning framed it, up to where the answer begins."""
    turns = (("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"), ("user", question))
    return "".join(f"<|im_start|>{who}\n{text}<|im_end|>\n" for who, text in turns) + "<|im_start|>assistant\n"


def continued(model, tokenizer, prompt, most=40):
    """What the model writes after a prompt, always the likeliest token, until it ends its turn or after `most`."""
    end = tokenizer.token_to_id("<|im_end|>")
    ids = generate(model, [tokenizer.encode(prompt).ids], most, top_k=1, eos_id=end)[0]
    return tokenizer.decode(ids, skip_special_tokens=False)


@experiment("smollm-writes", "A published Llama continues a text, and answers with and without the form of a chat.")
def smollm_writes(seed, most=40):
    """Nothing is drawn, so the seed changes nothing. Needs transformers; logits are compared in float64."""
    from transformers import LlamaForCausalLM

    source = find_smollm()
    model, tokenizer = Llama.from_pretrained(source), huggingface.tokenizer(source)
    prompts = {"continued": BEGINNING}
    for number, question in enumerate(QUESTIONS):
        prompts |= {f"bare {number}": question, f"framed {number}": in_chat_form(question)}
    results = {}
    for name, prompt in prompts.items():
        text = continued(model, tokenizer, prompt, most)
        results[name] = {"prompt": prompt, "text": text, "tokens": len(tokenizer.encode(text).ids)}
    ids = torch.tensor([tokenizer.encode(prompts["framed 0"]).ids])  # (1, T)
    theirs = LlamaForCausalLM.from_pretrained(source).double().eval()
    with torch.no_grad():
        logits, wanted = model.double()(ids), theirs(ids).logits  # (1, T, V)
    results["logits"] = {
        "largest_difference": (logits - wanted).abs().max(),
        "standard_deviation": wanted.std(),
        "parameters": number_of_parameters(model),
        "weights": huggingface.read(source)[0].get("weights_from", SMOLLM),
    }
    return {"results": results}


def recorded(name):
    """What the model wrote after one of the prompts of `smollm_writes`: "continued", "bare 0", "framed 0" and so on."""
    return ledger.load("smollm-writes")["runs"][0]["results"][name]["text"]
