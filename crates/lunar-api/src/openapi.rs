//! The description of the API.

use crate::problem::MEDIA_TYPE;
use axum::http::StatusCode;
use lunar_admin::RouterAction;
use std::collections::BTreeSet;
use utoipa::PartialSchema;
use utoipa::openapi::path::{Operation, Parameter, PathItem};
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, InfoBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Schema};

const DESCRIPTION: &str = "The control API of `lunar serve`: HTTP with JSON on its admin socket, and HTTPS with \
    authentication where it is configured. On the admin socket, the user of the client is its authentication.";

/// Errors that any request can have.
const ERRORS: [&str; 3] = ["400", "401", "403"];

/// The OpenAPI document of the API.
pub fn openapi() -> OpenApi {
    let mut document = crate::handlers::routes().split_for_parts().1;
    document.info = InfoBuilder::new().title("Lunar").version("v1").description(Some(DESCRIPTION)).build();
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        describe_parameters(operation);
        describe_errors(operation);
    }
    let used = document.paths.paths.values_mut().flat_map(operations);
    let used: BTreeSet<String> = used.flat_map(|one| one.responses.responses.keys().cloned()).collect();
    let errors = used.iter().filter(|status| status.as_str() >= "400");
    let errors = errors.filter_map(|status| StatusCode::from_bytes(status.as_bytes()).ok()).map(problem);
    let components = document.components.get_or_insert_default();
    components.responses.extend(errors);
    // Only a path has it, and schemas of paths are not collected.
    components.schemas.insert("RouterAction".into(), RouterAction::schema());
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("A token of `tokens`"));
    components.add_security_scheme("token", SecurityScheme::Http(token.build()));
    let description = Some("A certificate of `client_ca`".into());
    let certificate = SecurityScheme::MutualTls { description, deprecated: None, extensions: None };
    components.add_security_scheme("certificate", certificate);
    let ways = ["token", "certificate"];
    document.security = Some(ways.map(|way| SecurityRequirement::new::<_, [&str; 0], _>(way, [])).into());
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].into_iter().flatten()
}

/// An optional parameter is absent, never null.
fn describe_parameters(operation: &mut Operation) {
    let parameters = operation.parameters.iter_mut().flatten();
    let schemas = parameters.filter_map(|parameter| match parameter {
        RefOr::T(Parameter { schema: Some(RefOr::T(Schema::Object(schema))), .. }) => Some(schema),
        _ => None,
    });
    for schema in schemas {
        if let SchemaType::Array(types) = &schema.schema_type
            && let Some(one) = types.iter().find(|one| **one != Type::Null)
        {
            schema.schema_type = SchemaType::Type(one.clone());
        }
    }
}

/// All errors have the form and the media type of RFC 9457.
fn describe_errors(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    let mut errors: Vec<String> =
        responses.keys().filter(|status| status.as_str() >= "400").cloned().collect();
    errors.extend(ERRORS.map(str::to_owned));
    errors.extend(operation.request_body.is_some().then(|| "413".to_owned()));
    responses.extend(errors.into_iter().map(|status| {
        let name = Ref::from_response_name(&status);
        (status, name.into())
    }));
}

/// The response of an error.
fn problem(status: StatusCode) -> (String, RefOr<Response>) {
    let content = Content::new(Some(Ref::from_schema_name("Problem")));
    let title = status.canonical_reason().unwrap_or_default();
    let response = ResponseBuilder::new().description(title).content(MEDIA_TYPE, content).build();
    (status.as_str().to_owned(), response.into())
}
