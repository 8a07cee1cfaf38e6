//! The description of the API.

use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};

/// The OpenAPI document of the API.
pub fn openapi() -> OpenApi {
    let mut document = crate::handlers::routes().split_for_parts().1;
    document.merge(OpenApiBuilder::new().build());
    document.info = InfoBuilder::new()
        .title("Lunar")
        .version("v1")
        .description(Some("The control API of `lunar serve`: HTTP with JSON on its admin socket."))
        .build();
    document
}
