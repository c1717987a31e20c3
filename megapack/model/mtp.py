"""Multi-token prediction: megatron-core's layers, fed with tokens that were shifted by document.

Upstream shifts ids, labels and masks on the device, by offsets of real tokens in rows that are
laid out by slots, and computes the layers' loss itself: over a padded vocabulary, and divided by
each rank's own count. Here the layers get what `megapack.batch.mtp` has shifted on the whole row,
and hand their hidden states to the output like the decoder does. Its parameters, its checkpoint
names and its recompute are upstream's.
"""

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec

from megapack.batch.mtp import MtpView
from megapack.model.router_mask import sequence_parallel_part


class PackedMtpLayer(MultiTokenPredictionLayer):  # type: ignore[misc]
    """One layer. Constructor arguments are upstream's."""

    def _get_embeddings(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        embedding: Any,  # noqa: ANN401 - upstream type
        hidden_states: torch.Tensor,
        packed_seq_params: Any = None,  # noqa: ANN401 - upstream type
        padding_mask: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Embed tokens that were shifted before; upstream's shifts them here."""
        embedded = embedding(input_ids=input_ids, position_ids=position_ids)
        return input_ids, position_ids, padding_mask, embedded, hidden_states


class MtpModel(GPTModel):  # type: ignore[misc]
    """GPTModel whose output hook also gets the hidden states of its MTP layers.

    Constructor arguments are upstream's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - upstream signature
        super().__init__(*args, **kwargs)
        if self.mtp_process and self.share_embeddings_and_output_weights and not self.pre_process:
            # Upstream allocates it on a last stage that has an embedding of its own, never uses
            # it, and then refuses to save it.
            self.output_layer.weight = None

    def _postprocess(
        self,
        *,
        hidden_states: torch.Tensor,
        output_processor: Any,  # noqa: ANN401 - the hook of megapack.model.forward
        output_processor_context: Any,  # noqa: ANN401 - its context
        **inputs: Any,  # noqa: ANN401 - upstream signature
    ) -> Any:  # noqa: ANN401 - whatever the hook gives
        """Run the MTP layers that the context has views for, then the hook."""
        if not self.post_process:
            return hidden_states
        weight = None
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        return output_processor(
            hidden_states=hidden_states,
            mtp_hidden_states=self._predict_further(
                hidden_states, output_processor_context.mtp_views, inputs
            ),
            output_layer=self.output_layer,
            output_weight=weight,
            context=output_processor_context,
            config=self.config,
        )

    def _predict_further(
        self, hidden: torch.Tensor, views: tuple[MtpView, ...], inputs: dict[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        """Hidden states [T/cp(/tp), 1, H] of each layer that has a view; each reads the last's."""
        outputs = []
        for layer, view in zip(self.mtp.layers, views, strict=False):
            hidden, _, _, _ = layer(
                input_ids=view.tokens,
                position_ids=inputs["position_ids"],
                hidden_states=hidden,
                attention_mask=inputs["attention_mask"],
                padding_mask=self._router_mask(view),
                rotary_pos_emb=inputs["rotary_pos_emb"],
                rotary_pos_cos=inputs["rotary_pos_cos"],
                rotary_pos_sin=inputs["rotary_pos_sin"],
                packed_seq_params=inputs["packed_seq_params"],
                sequence_len_offset=inputs["sequence_len_offset"],
                embedding=self.embedding,
            )
            outputs.append(hidden)
        return tuple(outputs)

    def _router_mask(self, view: MtpView) -> torch.Tensor | None:
        if self.config.num_moe_experts is None:
            return None
        return sequence_parallel_part(self, view.padding_mask)


def mtp_block(config: Any, layer: ModuleSpec, provider: Any) -> Any:  # noqa: ANN401 - upstream types
    """What GPTModel takes as its MTP spec, on the last pipeline stage.

    Args:
        config: megatron-core's TransformerConfig.
        layer: the transformer layer inside each MTP layer.
        provider: gives norms and projections.
    """
    norm = provider.layer_norm()
    spec = ModuleSpec(
        module=PackedMtpLayer,
        submodules=MultiTokenPredictionLayerSubmodules(
            enorm=norm,
            hnorm=norm,
            layer_norm=norm,
            eh_proj=provider.column_parallel_linear(),
            mtp_model_layer=layer,
        ),
    )
    return MultiTokenPredictionBlockSubmodules(layer_specs=[spec] * config.mtp_num_layers)
