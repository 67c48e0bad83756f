"""Tiny models that take images, one of each class whose language model llamesh trains (src/model/description/multimodal.cpp)."""

import transformers

BLOCK = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
         "patch_size": 14}
CLIP = {"vision_config": {"model_type": "clip_vision_model", "projection_dim": 8} | BLOCK, "image_token_index": 10}
SIGLIP = {"vision_config": {"model_type": "siglip_vision_model"} | BLOCK}
DEPTH = {"depth": 1, "hidden_size": 8, "intermediate_size": 12, "num_heads": 2, "patch_size": 14}
# By class: the language model's family, and the parts beside text_config.
PARTS = {
    "Gemma3": ("gemma3_text", SIGLIP | {"mm_tokens_per_image": 1, "boi_token_index": 51, "eoi_token_index": 52,
                                        "image_token_index": 50}),
    "Mistral3": ("mistral", {"vision_config": {"model_type": "pixtral", "head_dim": 4} | BLOCK, "image_token_index": 50}),
    "Llava": ("llama", CLIP),
    "LlavaNext": ("mistral", CLIP),
    "LlavaOnevision": ("qwen2", SIGLIP | {"image_token_index": 10, "video_token_index": 9}),
    "VipLlava": ("llama", CLIP),
    "InternVL": ("qwen2", {"vision_config": BLOCK | {"image_size": [28, 28], "patch_size": [14, 14]}, "image_token_id": 10}),
    "GotOcr2": ("qwen2", {"vision_config": {"hidden_size": 8, "output_channels": 4, "num_hidden_layers": 1,
                                            "num_attention_heads": 2, "image_size": 32, "mlp_dim": 8, "window_size": 2,
                                            "global_attn_indexes": [0]}, "image_token_index": 50}),
    "Idefics3": ("llama", {"vision_config": BLOCK, "image_token_id": 10, "pad_token_id": 0}),
    "SmolVLM": ("llama", {"vision_config": BLOCK, "image_token_id": 10, "pad_token_id": 0}),
    "Qwen2VL": ("qwen2", {"vision_config": {"depth": 1, "embed_dim": 8, "mlp_ratio": 2, "num_heads": 2, "patch_size": 14}}),
    "Qwen2_5_VL": ("qwen2", {"vision_config": DEPTH}),
    "Qwen3VL": ("qwen3", {"vision_config": DEPTH | {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]}}),
    "Glm4v": ("glm4", {"vision_config": DEPTH | {"image_size": 28}}),
    "Glm46V": ("glm4", {"vision_config": {"model_type": "glm4v_vision"} | DEPTH | {"image_size": 28}}),
}
# The classes with a text class of their own, which rotates by three positions: the model_type of that one.
OWN_TEXT = {"Qwen2VL": "qwen2_vl_text", "Qwen2_5_VL": "qwen2_5_vl_text", "Qwen3VL": "qwen3_vl_text", "Glm4v": "glm4v_text",
            "Glm46V": "glm4v_text"}


def mrope(name, rotated):
    """The keys that divide so many rotated dims of a head among three positions."""
    of_one = rotated // 6
    keys = {"mrope_section": [rotated // 2 - 2 * of_one, of_one, of_one]}
    return keys | ({"mrope_interleaved": True} if name == "Qwen3VL" else {})


def known():
    """The classes that this version of transformers has."""
    return [name for name in PARTS if hasattr(transformers, f"{name}ForConditionalGeneration")]


def config_of(name, text, **keys):
    """A class's config around one of its language model."""
    others = dict(PARTS[name][1])
    if name in OWN_TEXT:
        size = "hidden_size" if name == "Qwen2VL" else "out_hidden_size"
        others["vision_config"] = others["vision_config"] | {size: text["hidden_size"]}
    text = {"model_type": OWN_TEXT.get(name, PARTS[name][0])} | text
    return getattr(transformers, f"{name}Config")(text_config=text, **others, **keys)


def model_of(name, config):
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)
